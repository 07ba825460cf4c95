"""Every number that the paper counts from rollouts and samples, as pure functions: no files, no model.

`attempts` is one run on one bench, {problem id: {step: record}}: `by_problem` makes it of the lines of rollouts.jsonl.
Shares are in [0, 1], tokens are counts, hours are GPU hours. Steps count from 1. A measure over nothing is None.
"Correct" is s, what the pass rate counts; "wrong" and "fix" of App. A are r = 0 and r = 1, what the policy may see.
"""
import statistics
from itertools import accumulate

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
    """`values` times `unit`, one a seed: the number; several: mean and sample standard deviation (Table 12).

    None if a seed has none.
    """
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


def pass_at_k(outcomes):
    """The paper's pass@k for k = 1..n: the share of problems with a correct one among their first k (Eq. 1).

    outcomes: [problems][n] of 0/1, in the order of the steps or samples. It is cumulative over the steps, whose answers
    depend on one another; it is not the unbiased estimator of pass@k from n independent samples (Chen et al., 2021),
    which averages over all choices of k of them. For k = n the two are equal, as in the tests of App. E.2.
    """
    solved = [list(accumulate(problem, max)) for problem in outcomes]  # [problems][n]: by the first k
    return [mean(at_k) for at_k in zip(*solved)]


def pass_curve(attempts, last):
    """`pass_at_k` of a run, k = 1..last calls."""
    return pass_at_k([[steps[t]["correct"] for t in range(1, last + 1)] for steps in attempts.values()])


def avg_at_k(outcomes):
    """avg@k of test samples [problems][k] of 0/1: the share of correct ones (App. E.2)."""
    return mean(outcome for problem in outcomes for outcome in problem)


def total_curve(attempts, last, *fields):
    """Sum of the records' `fields` over all answers up to step k, k = 1..last. A field that is not there counts 0."""
    totals = []
    for k in range(1, last + 1):
        records = [steps[k] for steps in attempts.values()]
        totals.append(sum(record.get(field, 0) for record in records for field in fields))
    return list(accumulate(totals))


def fault_curve(attempts, last):
    """Answers up to step k that the verifier failed on, or whose judgment is unreadable, k = 1..last."""
    faults = []
    for k in range(1, last + 1):
        records = [steps[k] for steps in attempts.values()]
        faults.append(sum(bool(r.get("fault") or r.get("judge_unreadable")) for r in records))
    return list(accumulate(faults))


def per_answer_curve(attempts, last, field):
    """Mean of a field over all answers graded up to step k, k = 1..last.

    Of "correct" it is the mean accuracy (Table 11), of "completion_tokens" the length, drafts excluded (Table 20).
    """
    totals = total_curve(attempts, last, field)
    return [total / (k * len(attempts)) for k, total in enumerate(totals, 1)]


# ---------------------------------------------------------------------------------------------------------------------
# Cost (App. C.4, E.5)

TOKENS = {"prompt": ("prompt_tokens", "draft_prompt_tokens", "summary_prompt_tokens"),
          "completion": ("completion_tokens",), "draft": ("draft_tokens",), "summary": ("summary_tokens",),
          "judge": ("judge_prompt_tokens", "judge_tokens")}


def token_curves(attempts, last):
    """Tokens up to step k, k = 1..last, as {one of TOKENS or "all": [...]}.

    "prompt" holds the prompts of drafts and summaries too, "judge" the judge's prompts and answers; "all" is T_fwd of
    Eq. 5, where prompt tokens that came from a cache count in full.
    """
    curves = {name: total_curve(attempts, last, *fields) for name, fields in TOKENS.items()}
    return curves | {"all": [sum(step) for step in zip(*curves.values())]}


def petaflops(parameters, forward_tokens, trained_tokens=0):
    """2 N T_fwd + 6 N T_train in units of 10^15 (Eq. 5)."""
    return (2 * parameters * forward_tokens + 6 * parameters * trained_tokens) / 1e15


def update_tokens(updates):
    """Tokens of a policy update, from the lines of distill.jsonl, as (forward here, forward in the paper, trained).

    Forward: the student's generation and the teacher's pass; the paper also counts a behaviour pass over the student's
    sequences, which one optimizer step per batch makes unnecessary (App. B.4, E.5).
    """
    student = sum(line["student_tokens"] for line in updates)
    teacher = sum(line["teacher_tokens"] for line in updates)
    return student + teacher, 2 * student + teacher, student


def update_seconds(updates):
    return sum(line["sample_seconds"] + line["train_seconds"] for line in updates)


def update_curves(updates, every, last):
    """What interleaved updates took up to step k, k = 1..last: forward tokens (as here), trained tokens, seconds.

    `updates`: lines of distill.jsonl; update j is made at the end of step j * every (App. G.3), and counts from there.
    """
    forward, trained, seconds = [], [], []
    for k in range(1, last + 1):
        made = [line for line in updates if line["step"] * every <= k]
        forward_here, _, trained_here = update_tokens(made)
        forward.append(forward_here)
        trained.append(trained_here)
        seconds.append(update_seconds(made))
    return [forward, trained, seconds]


def hour_curve(attempts, last, startup_seconds, wall_seconds, gpus=1, update_seconds=None, by="sample_seconds"):
    """GPU hours up to step k, k = 1..last (Fig. 3 (c), Tables 13 and 22): an allotment of the wall time.

    start-up + wall x (sampling seconds of the steps <= k, drafts included) / (all sampling seconds), times the GPUs:
    steps overlap, so that none can be measured. `update_seconds`, up to step k, were: they are not allotted.
    by: the field that allots, "completion_tokens" for random sampling (App. C.4).
    """
    updates = update_seconds or [0] * last
    total = sum(record[by] for steps in attempts.values() for record in steps.values())
    sampled = total_curve(attempts, last, by)
    hours = []
    for seconds, update in zip(sampled, updates):
        share = seconds / total if total else 1
        hours.append((startup_seconds + (wall_seconds - updates[-1]) * share + update) * gpus / 3600)
    return hours


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
    table = {}
    for attempts in runs:
        for problem, steps in attempts.items():
            revisions = [revision for t in range(2, REPEAT_STEPS + 1) if (revision := revised(steps, t))]
            if revisions:
                table.setdefault(problem, []).extend(revisions)
    return table


def revised(steps, t):
    """(signature of step t-1, repeat, fix) if step t revises a wrong answer with a signature; else None."""
    before, now = steps.get(t - 1), steps.get(t)
    if not (before and now) or now["restart"]:
        return None
    signature = before["signature"]
    if before["reward"] == 1 or signature is None:
        return None
    return signature, is_wrong_as(now, signature), now["reward"] == 1


def bootstrap_interval(differences, draws=10_000, seed=0):
    """95% percentile interval of the mean of paired differences, resampling problems."""
    import numpy as np  # here alone: `evaluate.py --help` need not wait for it
    values, generator = np.asarray(differences, dtype=float), np.random.default_rng(seed)
    means = [values[generator.integers(len(values), size=len(values))].mean() for _ in range(draws)]
    return tuple(np.percentile(means, [2.5, 97.5]).tolist())


# What avg@k and pass@k (k = all samples) say of one problem, from its 0/1 outcomes.
OF_PROBLEM = {"avg": mean, "pass": max}


def test_intervals(correct):
    """{"avg", "pass": 95% interval, resampling problems}; correct: {problem id: 0/1 outcome of each sample}."""
    return {name: bootstrap_interval([measure(outcomes) for outcomes in correct.values()])
            for name, measure in OF_PROBLEM.items()}


def paired_tests(ours, theirs):
    """{"avg", "pass": (ours, theirs, difference, (low, high))} of two tests of the same problems; see above."""
    compared = {}
    for name, measure in OF_PROBLEM.items():
        pairs = [(measure(ours[problem]), measure(theirs[problem])) for problem in ours]
        differences = [a - b for a, b in pairs]
        compared[name] = (mean(a for a, _ in pairs), mean(b for _, b in pairs), mean(differences),
                          bootstrap_interval(differences))
    return compared


def paired_rates(ours, theirs):
    """Table 8: repeat and fix rates of two transition tables, first per problem, then over the problems that both have.

    -> {"problems": n, "repeat": (ours, theirs, difference, (low, high)), "fix": the same}, or None, if none is shared.
    """
    # In an order of their own: the bootstrap draws places, and files have their lines as they were finished.
    shared = sorted(problem for problem in ours if problem in theirs)
    rates = {"problems": len(shared), "repeat": None, "fix": None}
    if not shared:
        return rates
    for name, column in (("repeat", 1), ("fix", 2)):
        our_rates = [mean(row[column] for row in ours[problem]) for problem in shared]
        their_rates = [mean(row[column] for row in theirs[problem]) for problem in shared]
        differences = [a - b for a, b in zip(our_rates, their_rates)]
        rates[name] = mean(our_rates), mean(their_rates), mean(differences), bootstrap_interval(differences)
    return rates


def pooled_rates(table, independent):
    """Table 9: {"transitions", "repeat", "base", "ratio"} over all transitions together.

    The base frequency of a transition is the share of the problem's independent samples (`independent`: the attempts of
    random sampling) that are wrong with the signature of step t-1. Problems without samples are left out.
    """
    repeated, base = [], []
    for problem, rows in table.items():
        samples = [record for t, record in independent.get(problem, {}).items() if t <= REPEAT_STEPS]
        if not samples:
            continue
        for signature, repeat, _ in rows:
            repeated.append(repeat)
            base.append(mean(is_wrong_as(record, signature) for record in samples))
    ratio = sum(repeated) / sum(base) if sum(base) else None
    return {"transitions": len(base), "repeat": mean(repeated), "base": mean(base), "ratio": ratio}


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
    repeated = [not now["correct"] and answer(before) == answer(now) != "" for before, now in after_wrong]
    return {"wrong_to_right": mean(now["correct"] for _, now in after_wrong),
            "right_to_wrong": mean(not now["correct"] for now in after_right),
            "repeat": mean(repeated),
            "restart": mean(r["correct"] for r in early if r["restart"]),
            "mean": mean(r["correct"] for r in early)}


def relative_gain(base, update, rollout):
    """How much of the with-context gain the policy keeps without context (Table 32); None where there is no gain."""
    return (update - base) / (rollout - base) if rollout != base else None


# ---------------------------------------------------------------------------------------------------------------------
# Comparisons over benches, models and seeds


def first_reach(xs, ys, level):
    """The x at which a curve first reaches `level` (Table 14), linearly interpolated between its points.

    None if it never does.
    """
    for i, (x, y) in enumerate(zip(xs, ys)):
        if y < level - 1e-12:  # means of equal rates differ by their rounding
            continue
        if i == 0:
            return x
        return xs[i - 1] + (x - xs[i - 1]) * (level - ys[i - 1]) / (y - ys[i - 1])
    return None


def speed_up(xs, ys, baseline_xs, baseline_ys):
    """x of the baseline's last point / x at which the other curve first reaches the same pass rate (Table 14).

    None if it never does, or if the baseline solved nothing.
    """
    x = first_reach(xs, ys, baseline_ys[-1]) if baseline_ys[-1] > 0 else None
    return baseline_xs[-1] / x if x else None
