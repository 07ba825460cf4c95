"""The tables of the paper, counted from the rollouts of explorations and the journals of updates.

evaluate.py is their command line; measures.py has the formulas. Nothing here needs a model or a GPU.
"""
import dataclasses
import itertools
import os

from answers import last_boxed, program_of
from common.errors import BadInput
from report import measures, paper
from report.curves import DECODING, check_alike, mean_curves, read_group
from report.measures import over_seeds
from report.method import LEAF, RANDOM, Method


# ---------------------------------------------------------------------------------------------------------------------
# A table


@dataclasses.dataclass
class Table:
    """A cell is a text, a Method, a number in its column's unit, None, or (mean, deviation) over seeds."""
    title: str
    columns: list
    rows: list

    def markdown(self):
        lines = [self.columns, ["---"] * len(self.columns)]
        lines += [[cell(value) for value in row] for row in self.rows]
        return f"\n**{self.title}**\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def as_json(self):
        """What json.dumps takes: a method as its text."""
        rows = [[str(value) if isinstance(value, Method) else value for value in row] for row in self.rows]
        return {"title": self.title, "columns": self.columns, "rows": rows}


def cell(value):
    """A cell as Markdown."""
    if value is None:
        return "–"
    if isinstance(value, tuple):
        return f"{cell(value[0])} ± {cell(value[1])}"
    if isinstance(value, (str, Method)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:#.2g}"


def percent(share):
    return None if share is None else 100 * share


def with_paper(table, numbers, other=()):
    """The table with the paper's rows below its own; `numbers`, of paper.py: {a row's first cells: its others}.

    other: the (model, bench) whose runs are not as the paper's; means over all benches are none either, then.
    """
    if not numbers:
        return table
    rows, size = [], len(next(iter(numbers)))  # how many cells say which row it is
    for row in table.rows:
        rows.append(row)
        key = tuple(row[:size])
        is_mean = len(key) == 1 or key[1] == ""
        if key in numbers and key[:2] not in other and not (is_mean and other):
            cells = [f"{key[0]} (paper)", *key[1:], *numbers[key]]
            rows.append(cells + [None] * (len(row) - len(cells)))  # the paper counts no verifier faults
    return dataclasses.replace(table, rows=rows)


# ---------------------------------------------------------------------------------------------------------------------
# The tables of one method


UNITS = {"accuracy": 100, "pass": 100, "all": 1e-6, "petaflops": 1, "hours": 1, "length": 1,
         "faults": 1}  # of result_table


def at_end(curves):
    """The columns of result_table from one set of curves per seed, at the last step of each."""
    steps = dict.fromkeys(len(c["calls"]) for c in curves)
    cells = ["/".join(map(str, steps))]
    for name, unit in UNITS.items():
        cells.append(over_seeds([c[name][-1] if name in c else None for c in curves], unit))
    return cells


def result_table(groups):
    """Tables 11, 13, 20, 22, 23 and 25: what the runs reached at their last step and what that cost."""
    rows = []
    for group in groups:
        rows += [[*key, group.method, *at_end([run.curves for run in runs])] for key, runs in group.runs.items()]
        if len(group.runs) > 1:
            rows.append(["all", "all", group.method, *at_end(group.curves)])
    title = "Results at the last step"
    if len(groups[0].runs) > 1:
        title += " (all: rates averaged, costs added up over benches, both averaged over models)"
    return Table(title, ["model", "bench", "method", "steps", "mean accuracy (%)", "pass@k (%)",
                         "tokens processed (M)", "PFLOPs", "GPU hours", "tokens per answer",
                         "verifier faults"], rows)


def curve_table(group):
    """pass@k, mean accuracy and cost step by step (Fig. 3)."""
    mean = mean_curves(group.curves)
    token_kinds = [kind for kind in (*measures.TOKENS, "update") if kind in mean]
    if not mean["summary"][-1]:
        token_kinds.remove("summary")
    rows = []
    for k in range(len(mean["calls"])):
        row = [k + 1]
        row += [over_seeds([curves[name][k] for curves in group.curves], 100) for name in ("pass", "accuracy")]
        row += [round(mean[kind][k]) for kind in token_kinds]
        row += [mean[name][k] if name in mean else None for name in ("petaflops", "hours")]
        rows.append(row)
    return Table(f"{group.method} up to each step (GPU hours are an allotment by sampling time)",
                 ["step", "pass@k (%)", "mean accuracy (%)", *(f"{kind} tokens" for kind in token_kinds), "PFLOPs",
                  "GPU hours"], rows)


def repeat_table(group):
    """Table 7: how often independent samples repeat an earlier wrong answer."""
    rows = []
    for key, runs in group.runs.items():
        counts = [measures.repeats(run.attempts) for run in runs]
        rows.append([*key, over_seeds([wrong for wrong, _ in counts]),
                     over_seeds([repeated / wrong if wrong else None for wrong, repeated in counts], 100)])
    return Table(f"Wrong answers of {group.method} that repeat an earlier one to the same problem (Table 7)",
                 ["model", "bench", "wrong answers", "repeats (%)"], rows)


CORRECTION_COLUMNS = ("wrong to right (%)", "right to wrong (%)", "wrong to the same wrong (%)",
                      "accuracy at restarts (%)", "mean accuracy (%)")


def correction_table(groups, problems):
    """Table 28: self-correction over the first 10 steps on `problems`, those in C+, which the policy update uses."""
    rows = []
    for group in groups:
        if group.method.kind == "random":  # which corrects nothing
            continue
        for key, runs in group.runs.items():
            rows.append([*key, group.method, *correction_cells([(run, problems) for run in runs])])
    return Table("Self-correction on the problems of C+, first 10 steps (Table 28)",
                 ["model", "bench", "method", *CORRECTION_COLUMNS], rows)


def correction_cells(runs):
    """The numbers of a row of Table 28. runs: [(run, the problems that count)], one for each seed."""
    rates = []
    for run, problems in runs:
        attempts = {problem: steps for problem, steps in run.attempts.items() if problem in problems}
        rates.append(measures.self_correction(attempts, final_answer))
    return [over_seeds([rate[name] for rate in rates], 100) for name in rates[0]]


def final_answer(record):
    """What Table 28 compares: the box on MATH, the program on code, the text after "Final answer:" on SciKnowEval; on a
    bench of the user's own the first of the three that is there. None without one."""
    response, bench = record["response"], record["bench"]
    box, program = last_boxed(response), program_of(response)
    _, mark, text = response.rpartition("Final answer:")
    text = text if mark else None
    known = {"math500": box, "arithmetic": box, "lcb": program, "mbpp": program, "sciknoweval": text}
    return known.get(bench, box or program or text)


def update_table(run, steps, gpus):
    """Table 19 for one run: exploration and policy update, in both accountings of the update's compute (App. E.5).

    `steps`: the lines of distill.jsonl. The update's hours leave out its start-up.
    """
    here, papers, trained = measures.update_tokens(steps)
    hours = gpus * measures.update_seconds(steps) / 3600
    return cost_table(run, [exploration_cost(run), ("update", here, trained, hours),
                            ("update, with the paper's behaviour pass", papers, trained, hours)])


def online_table(run, records, steps):
    """The same for a baseline that updates while it explores: all of its answers, of which the curves count fewer.

    records: the lines of its rollouts.jsonl; steps: of METHOD.jsonl.
    """
    forward = sum(record.get(name, 0) for record in records for names in measures.TOKENS.values() for name in names)
    here, papers, trained = (sum(step[f"{name}_tokens"] for step in steps)
                             for name in ("forward", "paper_forward", "trained"))
    hours, kind = run.gpus * measures.update_seconds(steps) / 3600, run.method.kind
    return cost_table(run, [(kind, forward + here, trained, hours),
                            (f"{kind}, with the paper's behaviour pass", forward + papers, trained, hours)])


def sft_table(run, rewrites, steps, result):
    """The same for SFT. run: whose answers were rewritten; the lines of rewrites.jsonl and sft.jsonl; `result`: of
    sft.json, {} before its end."""
    forward = sum(line["prompt_tokens"] + line["completion_tokens"] for line in rewrites)
    trained, gpus = sum(step["trained_tokens"] for step in steps), result.get("gpus", 1)
    rewriting = gpus * result.get("seconds", {}).get("rewriting", 0) / 3600
    hours = gpus * sum(step["train_seconds"] for step in steps) / 3600
    return cost_table(run, [exploration_cost(run), ("rewriting", forward, 0, rewriting), ("sft", 0, trained, hours)])


def exploration_cost(run):
    """A stage of cost_table."""
    return "exploration", *(run.curves[name][-1] if name in run.curves else 0 for name in ("all", "trained", "hours"))


def cost_table(run, stages):
    """stages: (name, forward tokens, trained tokens, GPU hours) each."""
    if run.parameters is None:
        raise BadInput(f"{run.path} has no result in the explore.json beside it: let explore.py end first.")
    rows = [[run.model, run.bench, name, forward, trained, measures.petaflops(run.parameters, forward, trained), hours]
            for name, forward, trained, hours in stages]
    return Table("Cost of training (Table 19)",
                 ["model", "bench", "stage", "forward tokens", "trained tokens", "PFLOPs", "GPU hours"], rows)


def trace_table(name, lines, rollouts, contexts):
    """Table 27: how many contexts of each kind the teachers may get.

    name: [model, bench]; lines: {problem id: its lines of cplus.jsonl}; rollouts: the records of rollouts.jsonl;
    contexts(traces): {problem id: its contexts}.
    """
    failure = contexts("failure")
    plain = [problem for problem in lines if failure[problem] == [lines[problem][0]["opening"]]]
    failures = sum(len(failure[problem]) for problem in lines if problem not in plain)
    pairs = sum(map(len, lines.values()))
    restarts = {(r["problem"], r["step"]) for r in rollouts if r["restart"]}
    restart = sum((problem, line["step"]) in restarts for problem in lines for line in lines[problem])
    try:
        others, random = from_other_problems(lines, rollouts, contexts("random"), restarts), pairs - restart
    except BadInput:  # the rollouts hold one feedback text alone: there are no random traces
        others = random = None
    return Table("Contexts of the training problems (Table 27)",
                 ["model", "bench", "problems", "successful per problem", "failure per problem", "plain prompt",
                  "random", "from other problems", "restart"],
                 [[*name, len(lines), pairs / len(lines), failures / len(lines), len(plain), random, others, restart]])


def from_other_problems(lines, rollouts, replaced, restarts):
    """How many of the random traces `replaced` hold a feedback turn that no rollout of their problem has."""
    own = {(r["problem"], r["context"][-1]["content"]) for r in rollouts if not r["restart"]}
    count = 0
    for problem in lines:
        for line, context in zip(lines[problem], replaced[problem]):
            if (problem, line["step"]) not in restarts:
                count += (problem, context[-1]["content"]) not in own
    return count


# ---------------------------------------------------------------------------------------------------------------------
# Comparisons of two methods


def read_groups(*paths):
    """A group of each list of files; two groups of one method have their folders in their names."""
    paths = [files for files in paths if files]
    groups = [read_group(files) for files in paths]
    for ours, theirs in itertools.combinations(groups, 2):
        for key in ours.runs.keys() & theirs.runs.keys():
            check_alike(ours.runs[key][0], theirs.runs[key][0], DECODING)
    if len({group.method for group in groups}) < len(groups):
        for group, files in zip(groups, paths):
            folder = os.path.dirname(files[0]) or "."
            group.method = dataclasses.replace(group.method, folder=folder)
    return groups


def all_tables(groups):
    """The tables of one group, or of the first of two against the second, with as many seeds of the same benches.

    -> [(Table, the paper's numbers for its rows)], see `with_paper`.
    """
    tables = [(repeat_table(group), paper.REPEATS) for group in groups if group.method.kind == "random"]
    if len(groups) == 2:
        tables += comparison_tables(*groups)
    tables += [(curve_table(group), {}) for group in groups]
    runs = runs_of(groups)
    # The first has a column of them.
    return [(result_table(groups), paper.EXPLORATION), *((with_faults(table, runs), rows) for table, rows in tables)]


def runs_of(groups):
    return [run for group in groups for runs in group.runs.values() for run in runs]


def with_faults(table, runs):
    """The table with a word on the answers that count as wrong because their verifier failed, where there are any."""
    faults = sum(run.curves["faults"][-1] for run in runs)
    more = f"; {faults} verifier faults among the answers count as wrong" if faults else ""
    return dataclasses.replace(table, title=table.title + more)


def comparison_tables(ours, theirs):
    """What `all_tables` has of the first group against the second."""
    if len(ours.curves) != len(theirs.curves) or set(ours.runs) != set(theirs.runs):
        raise BadInput("--rollouts and --versus differ in models, benches or the number of seeds: name the same ones.")
    speed, lengths = {}, {}
    if (ours.method, theirs.method) == (LEAF, RANDOM):
        lengths = paper.LENGTHS
        if set(ours.runs) == set(lengths):  # all models and benches of the paper
            speed = {("verifier calls",): [*[None] * (len(ours.curves) + 1), paper.CALLS_SPEED_UP]}
            lengths = lengths | {("mean", ""): paper.MEAN_LENGTH}
    tables = [(speed_table(ours, theirs), speed), (length_table(ours, theirs), lengths)]
    kinds = ours.method.kind, theirs.method.kind
    if kinds == ("leaf", "leaf"):
        tables.append((paired_table(ours, theirs), paper.PAIRED.get((ours.method, theirs.method), {})))
    elif kinds != ("random", "random"):
        leaf, independent = (ours, theirs) if kinds == ("leaf", "random") else (theirs, ours)
        tables.append((pooled_table(leaf, independent), paper.POOLED.get((leaf.method,), {})))
    return tables


def speed_table(ours, theirs):
    """Table 14: x of their last point / x at which our curve first reaches their last pass rate."""
    pairs = [*zip(ours.curves, theirs.curves), (mean_curves(ours.curves), mean_curves(theirs.curves))]
    rows = []
    for name, axis in (("calls", "verifier calls"), ("petaflops", "PFLOPs"), ("hours", "GPU time")):
        if all(name in curves for curves in pairs[-1]):
            *ratios, of_means = [measures.speed_up(a[name], a["pass"], b[name], b["pass"]) for a, b in pairs]
            rows.append([axis, *ratios, over_seeds(ratios), of_means])
    return Table(f"Cost of {theirs.method} / cost at which {ours.method} reaches the same pass rate (Table 14)",
                 ["cost", *(f"run {i}" for i in range(1, len(pairs))), "mean", "mean curve"], rows)


def length_table(ours, theirs):
    """Table 3: ratio of mean lengths and difference of pass rates, per model and bench and averaged over them."""
    rows = []
    for key in ours.runs:
        length = mean_at_end(ours.runs[key], "length") / mean_at_end(theirs.runs[key], "length")
        gain = 100 * (mean_at_end(ours.runs[key], "pass") - mean_at_end(theirs.runs[key], "pass"))
        rows.append([*key, length, gain])
    if len(rows) > 1:
        rows.append(["mean", "", *(measures.mean(row[i] for row in rows) for i in (2, 3))])
    return Table(f"Length and gain of {ours.method} over {theirs.method} (Table 3)",
                 ["model", "bench", "length (ratio)", "pass rate gain (pp)"], rows)


def mean_at_end(runs, name):
    return measures.mean(run.curves[name][-1] for run in runs)


def paired_table(ours, theirs):
    """Table 8: repeat and fix rates over the problems that both have transitions of, those of all seeds together."""
    rows = []
    for key in ours.runs:
        of_ours, of_theirs = (measures.transitions(*(run.attempts for run in group.runs[key]))
                              for group in (ours, theirs))
        rates = measures.paired_rates(of_ours, of_theirs)
        row = [*key, rates["problems"]]
        for name in ("repeat", "fix"):
            *means, interval = rates[name] or (None, None, None, (None, None))
            row += map(percent, (*means, *interval))
        rows.append(row)
    columns = [f"{name}: {part}" for name in ("repeats it", "fixes it")
               for part in ("ours (%)", "theirs (%)", "Δ (pp)", "Δ low", "Δ high")]
    return Table(f"The step after a wrong answer, {ours.method} against {theirs.method} (theirs), problem by problem, "
                 "with the 95% interval of the difference (Table 8)",
                 ["model", "bench", "problems", *columns], rows)


def pooled_table(ours, independent):
    """Table 9: repeats over all transitions against the base frequency in the independent samples of the same seed."""
    rows = []
    units = {"transitions": 1, "repeat": 100, "base": 100, "ratio": 1}
    for key, runs in ours.runs.items():
        rates = [measures.pooled_rates(measures.transitions(run.attempts), samples.attempts)
                 for run, samples in zip(runs, independent.runs[key])]
        rows.append([*key, *(over_seeds([r[name] for r in rates], unit) for name, unit in units.items())])
    return Table(f"The step after a wrong answer: how often {ours.method} repeats it, and how often independent "
                 "samples of the problem give it (base) (Table 9)",
                 ["model", "bench", "steps after a wrong answer", "repeats (%)", "base (%)", "ratio"], rows)
