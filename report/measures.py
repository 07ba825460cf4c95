"""Every number that the paper counts from rollouts and samples, as pure functions: no files, no model.

`attempts` is one run on one bench, {problem id: {step: record}}: `by_problem` makes it of the lines of rollouts.jsonl.
Shares are in [0, 1], tokens are counts, hours are GPU hours. Steps count from 1. A measure over nothing is None.
"Correct" is s, what the pass rate counts; "wrong" and "fix" of App. A are r = 0 and r = 1, what the policy may see.
"""
import statistics

import numpy as np

from common.errors import BadInput

REPEAT_STEPS = 24           # App. A looks at the first 24 steps
SELF_CORRECTION_STEPS = 10  # App. G.4: 10 steps, restarts at 1 and 6


def by_problem(records):
    """{problem id: {step: record}}; BadInput if a (problem, step) is there twice."""
    attempts = {}
    for record in records:
        steps = attempts.setdefault(record["problem"], {})
        if record["step"] in steps:
            raise BadInput(f"step {record['step']} of problem {record['problem']} is recorded twice: delete one line.")
        steps[record["step"]] = record
    return attempts


def mean(values):
    """Mean of numbers or of 0/1 outcomes; None if there are none."""
    values = list(values)
    return sum(values) / len(values) if values else None


def over_seeds(values, unit=1):
    """`values` times `unit`, one a seed: the number; several: mean and sample standard deviation (Table 12). None if a
    seed has none."""
    if None in values:
        return None
    values = [unit * value for value in values]
    return values[0] if len(values) == 1 else (statistics.fmean(values), statistics.stdev(values))


# ---------------------------------------------------------------------------------------------------------------------
# Pass rate and accuracy


def complete_steps(attempts):
    """The last k such that every problem has the steps 1..k: segments run side by side, so one may be missing."""
    last = 0
    while attempts and all(last + 1 in steps for steps in attempts.values()):
        last += 1
    return last


def pass_curve(attempts, last):
    """pass@k for k = 1..last: the share of problems with a correct answer within their first k (Eq. 1)."""
    first = [min((t for t, r in steps.items() if r["correct"]), default=last + 1) for steps in attempts.values()]
    return [mean(f <= k for f in first) for k in range(1, last + 1)]


def total_curve(attempts, last, *fields):
    """Sum of the records' `fields` over all answers up to step k, k = 1..last. A field that is not there counts 0."""
    return np.cumsum([sum(steps[k].get(field, 0) for steps in attempts.values() for field in fields)
                      for k in range(1, last + 1)]).tolist()


def per_answer_curve(attempts, last, field):
    """Mean of a field over all answers graded up to step k, k = 1..last: of "correct" the mean accuracy (Table 11), of
    "completion_tokens" the length, drafts excluded (Table 20)."""
    return [total / (k * len(attempts)) for k, total in enumerate(total_curve(attempts, last, field), 1)]


def avg_and_pass(outcomes):
    """avg@n and pass@n of test samples [problems][n] of 0/1: correct ones, problems with a correct one (App. E.2)."""
    return mean(z for problem in outcomes for z in problem), mean(any(problem) for problem in outcomes)


# ---------------------------------------------------------------------------------------------------------------------
# Cost (App. C.4, E.5)

TOKENS = {"prompt": ("prompt_tokens", "draft_prompt_tokens", "summary_prompt_tokens"),
          "completion": ("completion_tokens",), "draft": ("draft_tokens",), "summary": ("summary_tokens",),
          "judge": ("judge_prompt_tokens", "judge_tokens")}


def token_curves(attempts, last):
    """Tokens up to step k, k = 1..last, as {a kind of TOKENS or "all": [...]}.

    "prompt" holds the prompts of drafts and summaries too, "judge" the judge's prompts and answers; "all" is T_fwd of
    Eq. 5, where prompt tokens that came from a cache count in full.
    """
    curves = {kind: total_curve(attempts, last, *fields) for kind, fields in TOKENS.items()}
    return curves | {"all": [sum(step) for step in zip(*curves.values())]}


def petaflops(parameters, forward_tokens, trained_tokens=0):
    """2 N T_fwd + 6 N T_train in units of 10^15 (Eq. 5)."""
    return (2 * parameters * forward_tokens + 6 * parameters * trained_tokens) / 1e15


def update_tokens(updates):
    """Tokens of a policy update, from the lines of distill.jsonl, as (forward here, forward in the paper, trained).

    Forward: the student's generation and the teacher's pass; the paper also counts a behaviour pass over the student's
    sequences, which one optimizer step per batch makes unnecessary (App. B.4, E.5).
    """
    student, teacher = (sum(line[name] for line in updates) for name in ("student_tokens", "teacher_tokens"))
    return student + teacher, 2 * student + teacher, student


def update_curves(updates, every, last):
    """What interleaved updates took up to step k, k = 1..last: forward tokens (as here), trained tokens, seconds.

    `updates`: lines of distill.jsonl; update j is made at the end of step j * every (App. G.3), and counts from there.
    """
    made = [[line for line in updates if line["step"] * every <= k] for k in range(1, last + 1)]
    forward, _, trained = map(list, zip(*map(update_tokens, made)))
    return [forward, trained, [sum(line["sample_seconds"] + line["train_seconds"] for line in lines) for lines in made]]


def hour_curve(attempts, last, startup_seconds, wall_seconds, gpus=1, update_seconds=None):
    """GPU hours up to step k, k = 1..last: an allotment of the wall time, not a measurement of the step.

    start-up + wall x (sampling seconds of the steps <= k, drafts included) / (all sampling seconds), times the GPUs.
    `update_seconds`, up to step k, were measured: they are not allotted.
    """
    updates = update_seconds or [0] * last
    total = sum(record["sample_seconds"] for steps in attempts.values() for record in steps.values())
    shares = [sampled / total if total else 1 for sampled in total_curve(attempts, last, "sample_seconds")]
    return [(startup_seconds + (wall_seconds - updates[-1]) * share + update) * gpus / 3600
            for share, update in zip(shares, updates)]


# ---------------------------------------------------------------------------------------------------------------------
# Repeated wrong answers (App. A)


def is_wrong_as(record, signature):
    """Whether an answer is wrong with this error signature, which is never None: no signature is never a repeat."""
    return record["reward"] == 0 and record["signature"] == signature


def repeats(attempts):
    """Wrong answers of independent samples, and how many repeat an earlier wrong answer of their problem (Table 7)."""
    wrong = repeated = 0
    for steps in attempts.values():
        seen = set()
        for record in (steps[t] for t in sorted(steps) if t <= REPEAT_STEPS):
            if record["reward"] == 0:
                wrong += 1
                repeated += record["signature"] in seen
                seen |= {record["signature"]} - {None}
    return wrong, repeated


def transitions(*runs):
    """{problem id: [(signature of step t-1, repeat, fix), ...]}: steps t that revise a wrong answer with a signature.

    `runs`: the attempts of each seed. A restart step revises a fresh draft instead, so it is no transition. A problem
    without transitions is left out.
    """
    found = {}
    for problem, steps in (item for attempts in runs for item in attempts.items()):
        for t in range(2, REPEAT_STEPS + 1):
            before, now = steps.get(t - 1), steps.get(t)
            if now and before and not now["restart"] and before["reward"] == 0 and before["signature"] is not None:
                found.setdefault(problem, []).append(
                    (before["signature"], is_wrong_as(now, before["signature"]), now["reward"] == 1))
    return found


def bootstrap_interval(differences, draws=10_000, seed=0):
    """95% percentile interval of the mean of paired differences, resampling problems."""
    values, generator = np.asarray(differences, dtype=float), np.random.default_rng(seed)
    means = [values[generator.integers(len(values), size=len(values))].mean() for _ in range(draws)]
    return tuple(np.percentile(means, [2.5, 97.5]).tolist())


def paired_rates(ours, theirs):
    """Table 8: repeat and fix rates of two transition tables, first per problem, then over the problems that both have.

    -> {"problems": n, "repeat": (ours, theirs, difference, (low, high)), "fix": the same}, or None, if none is shared.
    """
    shared = [problem for problem in ours if problem in theirs]
    result = {"problems": len(shared)}
    for name, column in (("repeat", 1), ("fix", 2)):
        a, b = ([mean(t[column] for t in table[problem]) for problem in shared] for table in (ours, theirs))
        differences = [x - y for x, y in zip(a, b)]
        result[name] = (mean(a), mean(b), mean(differences), bootstrap_interval(differences)) if shared else None
    return result


def pooled_rates(table, independent):
    """Table 9: {"transitions", "repeat", "base", "ratio"} over all transitions together.

    The base frequency of a transition is the share of the problem's independent samples (`independent`: the attempts of
    random sampling) that are wrong with the signature of step t-1. Problems without samples are left out.
    """
    repeated, base = [], []
    for problem, rows in table.items():
        samples = [record for t, record in independent.get(problem, {}).items() if t <= REPEAT_STEPS]
        for signature, repeat, _ in rows if samples else ():
            repeated.append(repeat)
            base.append(mean(is_wrong_as(record, signature) for record in samples))
    return {"transitions": len(base), "repeat": mean(repeated), "base": mean(base),
            "ratio": sum(repeated) / sum(base) if sum(base) else None}


# ---------------------------------------------------------------------------------------------------------------------
# Self-correction and internalisation (App. G.4, G.5)


def self_correction(attempts, final_answer):
    """Table 28 over the first 10 steps: {"wrong_to_right", "right_to_wrong", "repeat", "restart", "mean"}.

    `final_answer(record)` is the extracted answer or None. Answers are compared without white space; none is no repeat.
    """
    def answer(record):
        return "".join((final_answer(record) or "").split())

    early = [r for steps in attempts.values() for r in steps.values() if r["step"] <= SELF_CORRECTION_STEPS]
    pairs = [(attempts[r["problem"]].get(r["step"] - 1), r) for r in early if not r["restart"]]
    after_wrong = [(before, now) for before, now in pairs if before and not before["correct"]]
    after_right = [now for before, now in pairs if before and before["correct"]]
    return {"wrong_to_right": mean(now["correct"] for _, now in after_wrong),
            "right_to_wrong": mean(not now["correct"] for now in after_right),
            "repeat": mean(not now["correct"] and answer(before) == answer(now) != "" for before, now in after_wrong),
            "restart": mean(r["correct"] for r in early if r["restart"]), "mean": mean(r["correct"] for r in early)}


def relative_gain(base, update, rollout):
    """How much of the with-context gain the policy keeps without context (Table 32); None where there is no gain."""
    return (update - base) / (rollout - base) if rollout != base else None


# ---------------------------------------------------------------------------------------------------------------------
# Comparisons over benches, models and seeds


def first_reach(xs, ys, level):
    """The x at which a curve first reaches `level`, linearly interpolated between its points; None if it never does."""
    for i, (x, y) in enumerate(zip(xs, ys)):
        if y >= level - 1e-12:  # means of equal rates differ by their rounding
            return x if i == 0 else xs[i - 1] + (x - xs[i - 1]) * (level - ys[i - 1]) / (y - ys[i - 1])
    return None


def speed_up(xs, ys, baseline_xs, baseline_ys):
    """x of the baseline's last point / x at which the other curve first reaches the same pass rate (Table 14).

    None if it never does, or if the baseline solved nothing.
    """
    x = first_reach(xs, ys, baseline_ys[-1]) if baseline_ys[-1] > 0 else None
    return baseline_xs[-1] / x if x else None
