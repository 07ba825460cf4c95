"""What the rollouts of an exploration say: tables, plots, and one problem's attempts as a dialogue to be read.

evaluate.py --rollouts is its command line; measures.py has the formulas. Nothing here needs a model or a GPU.
"""
import dataclasses
import json
import os
import re
import sys
import textwrap

import data
import measures
import verifiers
from data import BadInput
from measures import over_seeds

# ---------------------------------------------------------------------------------------------------------------------
# Tables


@dataclasses.dataclass
class Table:
    """For Markdown and JSON: a cell is a text, a number in its column's unit, None, or (mean, deviation) over seeds."""
    title: str
    columns: list
    rows: list

    def markdown(self):
        lines = [self.columns, ["---"] * len(self.columns), *([cell(value) for value in row] for row in self.rows)]
        return f"\n**{self.title}**\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(value):
    if value is None:
        return "–"
    if isinstance(value, tuple):
        return f"{cell(value[0])} ± {cell(value[1])}"
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else value
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"


def percent(share):
    return None if share is None else 100 * share


# The paper's results for random sampling and LEAF, means of three seeds (Tables 11, 13, 20): mean accuracy %,
# pass@24 %, tokens processed in M (Table 13 calls them generated, but they are PFLOPs / 2 N), PFLOPs, GPU hours,
# tokens per answer.
QWEN, OLMO = "Qwen3-8B", "Olmo-3-7B-Instruct"
PAPER = {
    (QWEN, "math500"): ((84.14, 97.33, 12.1, 199, 0.30, 883), (87.30, 96.73, 21.4, 350, 0.48, 694)),
    (QWEN, "lcb"): ((20.14, 41.48, 4.4, 73, 0.09, 841), (29.89, 47.07, 8.5, 140, 0.46, 859)),
    (QWEN, "mbpp"): ((72.71, 85.80, 5.4, 88, 0.10, 395), (74.50, 86.07, 10.5, 172, 0.22, 382)),
    (QWEN, "sciknoweval"): ((74.83, 85.17, 16.2, 265, 0.17, 344), (80.32, 93.50, 23.3, 381, 0.31, 416)),
    (OLMO, "math500"): ((88.77, 97.73, 15.5, 227, 1.35, 1175), (93.44, 97.40, 30.8, 450, 2.16, 1194)),
    (OLMO, "lcb"): ((20.94, 43.26, 10.8, 157, 1.45, 2821), (31.97, 55.22, 20.3, 296, 2.80, 3598)),
    (OLMO, "mbpp"): ((68.27, 85.10, 6.2, 90, 0.38, 483), (75.74, 87.30, 16.7, 245, 1.01, 791)),
    (OLMO, "sciknoweval"): ((68.74, 86.50, 13.8, 201, 0.23, 207), (75.65, 98.08, 19.4, 284, 0.47, 292)),
}

# ---------------------------------------------------------------------------------------------------------------------
# Runs


@dataclasses.dataclass
class Run:
    """One rollouts.jsonl with what explore.json beside it says."""
    path: str
    attempts: dict      # {problem id: {step: record}}
    bench: str
    method: str         # its name in tables and plots
    model: str          # see `model_name`
    seed: int
    curves: dict        # name -> values at steps 1..last; "petaflops" and "hours" only with explore.json
    parameters: float | None    # N of Eq. 5, from explore.json


@dataclasses.dataclass
class Group:
    """The runs of one method: the same models and benches for each seed."""
    method: str
    seeds: list         # one {(model, bench): Run} per seed, cut at the last step that the seed's runs have in common
    curves: list        # one `overall` per seed


def read_attempts(path):
    """{problem id: {step: record}} of a rollouts.jsonl; a torn last line is left out with a note."""
    records = data.read_jsonl(path, torn_ok=True)
    if not records:
        raise BadInput(f"{path} holds no graded answer yet: run explore.py first.")
    if any(key not in record for record in records for key in ("problem", "step", "correct", "sample_seconds")):
        raise BadInput(f"{path} is not a file of rollouts: name the rollouts.jsonl that explore.py wrote.")
    try:
        return measures.by_problem(records)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def read_beside(path, name):
    """The JSON file `name` in the folder of `path`; None if there is none."""
    beside = os.path.join(os.path.dirname(path), name)
    if not os.path.isfile(beside):
        return None
    with open(beside) as file:
        try:
            return json.load(file)
        except ValueError as error:
            raise BadInput(f"{beside} is damaged ({error}): restore it, or do without compute and time.") from None


def model_name(model):
    """The last part of a Hub id or folder: the paper's models keep their name wherever they lie, and seeds that have a
    model each (tiny.py) belong together."""
    return os.path.basename(os.path.normpath(model))


def read_run(path, number):
    """The run in `path`; `number` stands for the seed where there is no explore.json."""
    attempts, explored = read_attempts(path), read_beside(path, "explore.json") or {}
    settings, result = explored.get("settings", {}), explored.get("result")  # no result: the run has not ended yet
    records = [record for steps in attempts.values() for record in steps.values()]
    if result and len(attempts) < result["problems"]:
        print(f"Note: {path} has answers to {len(attempts)} of its {result['problems']} problems.", file=sys.stderr)
    last, most = measures.complete_steps(attempts), max(map(max, attempts.values()))
    curves = {"calls": [*range(1, last + 1)], "pass": measures.pass_curve(attempts, last),
              "accuracy": measures.accuracy_curve(attempts, last), "length": measures.length_curve(attempts, last),
              **measures.token_curves(attempts, last)}
    if result:
        curves["petaflops"] = [measures.petaflops(result["parameters"], tokens) for tokens in curves["all"]]
        startup = result["startup_seconds"]  # a run that goes on has taken longer than its explore.json knows
        wall = max(result["wall_seconds"], *(record.get("elapsed_seconds", 0) - startup for record in records))
        curves["hours"] = measures.hour_curve(attempts, last, startup, wall, result["gpus"])
        cap = settings["gpu_hours"] or float("inf")
        last = sum(hours <= cap for hours in curves["hours"])  # App. C.4: min(K, k_5h)
    if last == 0:
        raise BadInput(f"{path}: no step is complete for every problem (within its --gpu-hours): go on with the same "
                       "explore.py command.")
    if last < most:
        print(f"Note: {path} goes up to step {most}, and counts up to step {last}, the last one that every problem "
              "completed within the cap.", file=sys.stderr)
    if records[0]["method"] == "random":
        method = "random sampling"
    else:
        usual = {"memory": "leaf", "restart": 5, "tail": 2000, "compress": "tail", "update_every": None}
        changed = [key for key in usual if settings.get(key, usual[key]) != usual[key]]
        method = ", ".join(["LEAF", *(f"{key} {settings[key]}" for key in changed)])
    bench = records[0]["bench"] + (" (train)" if settings.get("split") == "train" else "")
    return Run(path, attempts, bench, method, model_name(settings.get("model", "model")), settings.get("seed", number),
               {name: values[:last] for name, values in curves.items()}, result and result["parameters"])


def read_group(paths):
    """The runs of one method; errors: BadInput if they are of several, or if the seeds do not match."""
    seeds = {}
    for run in (runs := [read_run(path, number) for number, path in enumerate(paths, 1)]):
        if run.method != runs[0].method:
            raise BadInput(f"{runs[0].path} is {runs[0].method} and {run.path} is {run.method}: compare two methods "
                           "with --rollouts and --versus.")
        cells = seeds.setdefault(run.seed, {})
        if (run.model, run.bench) in cells:
            raise BadInput(f"{cells[run.model, run.bench].path} and {run.path} are both {run.model} on {run.bench} "
                           f"with seed {run.seed}: name one of them.")
        cells[run.model, run.bench] = run
    seeds = [cells for _, cells in sorted(seeds.items())]
    if any(set(cells) != set(seeds[0]) for cells in seeds):
        raise BadInput("the seeds have different models or benches: name every run of each seed, or fewer seeds.")
    for cells in seeds:
        last = min(len(run.curves["calls"]) for run in cells.values())
        for run in cells.values():
            run.curves = {name: values[:last] for name, values in run.curves.items()}
    return Group(runs[0].method, seeds, [overall(cells) for cells in seeds])


RATES = ("calls", "pass", "accuracy", "length")  # averaged over benches; all other curves are costs, which add up


def overall(cells):
    """Curves of one seed over its benches and models: rates averaged and costs summed over benches, then averaged over
    models (Fig. 3)."""
    models = dict.fromkeys(model for model, _ in cells)
    by_model = [[run.curves for run in cells.values() if run.model == model] for model in models]
    curves = {}
    for name in [name for name in by_model[0][0] if all(name in run for model in by_model for run in model)]:
        over_benches = []
        for model in by_model:
            factor = 1 if name in RATES else len(model)
            over_benches.append([factor * x for x in measures.mean_curve([run[name] for run in model])])
        curves[name] = measures.mean_curve(over_benches)
    return curves


def seed_means(group):
    """The overall curves of a group averaged over its seeds."""
    names = [name for name in group.curves[0] if all(name in c for c in group.curves)]
    return {name: measures.mean_curve([c[name] for c in group.curves]) for name in names}


# ---------------------------------------------------------------------------------------------------------------------
# The tables of one method


def at_end(curves):
    """The columns of result_table from one set of curves per seed, at the last step of each."""
    steps = "/".join(str(n) for n in dict.fromkeys(len(c["calls"]) for c in curves))
    units = {"accuracy": 100, "pass": 100, "all": 1e-6, "petaflops": 1, "hours": 1, "length": 1}
    return [steps, *(over_seeds([c[name][-1] * unit if name in c else None for c in curves])
                     for name, unit in units.items())]


def result_table(groups, paper=False):
    """Tables 11, 13 and 20: what the runs reached at their last step and what that cost; `paper`: its numbers below."""
    rows = []
    for group in groups:
        for model, bench in group.seeds[0]:
            rows.append([model, bench, group.method, *at_end([cells[model, bench].curves for cells in group.seeds])])
            if paper and (model, bench) in PAPER and group.method in ("random sampling", "LEAF"):
                numbers = PAPER[model, bench][group.method == "LEAF"]
                rows.append([model, bench, f"{group.method} (paper)", "24", *numbers])
        if len(group.seeds[0]) > 1:
            rows.append(["all", "all", group.method, *at_end(group.curves)])
    return Table("Results at the last step (over all: rates are means, costs are sums over benches, means over models)",
                 ["model", "bench", "method", "steps", "mean accuracy (%)", "pass@k (%)", "tokens processed (M)",
                  "PFLOPs", "GPU hours", "tokens per answer"], rows)


def curve_table(group):
    """pass@k, mean accuracy and cost step by step (Fig. 3)."""
    mean, rows = seed_means(group), []
    for k in range(len(mean["calls"])):
        rows.append([k + 1, *(over_seeds([100 * c[name][k] for c in group.curves]) for name in ("pass", "accuracy")),
                     *(round(mean[name][k]) for name in ("prompt", "completion", "draft", "judge")),
                     *(mean[name][k] if name in mean else None for name in ("petaflops", "hours"))])
    return Table(f"{group.method} up to each step (GPU hours are an allotment by sampling time)",
                 ["step", "pass@k (%)", "mean accuracy (%)", "prompt tokens", "completion tokens", "draft tokens",
                  "judge tokens", "PFLOPs", "GPU hours"], rows)


def repeat_table(group):
    """Table 7: how often independent samples repeat an earlier wrong answer."""
    rows = []
    for key in group.seeds[0]:
        counts = [measures.repeats(cells[key].attempts) for cells in group.seeds]
        rows.append([*key, over_seeds([wrong for wrong, _ in counts]),
                     over_seeds([100 * repeated / wrong if wrong else None for wrong, repeated in counts])])
    return Table(f"Repeated wrong answers, {group.method} (Table 7)", ["model", "bench", "wrong", "repeat (%)"], rows)


def correction_table(groups, problems):
    """Table 28: self-correction over the first 10 steps on `problems`, those in C+, which the policy update uses."""
    rows = []
    for group in groups:
        for key in group.seeds[0]:
            rates = [measures.self_correction({p: steps for p, steps in cells[key].attempts.items() if p in problems},
                                              final_answer) for cells in group.seeds]
            rows.append([*key, group.method, *(over_seeds([percent(r[name]) for r in rates]) for name in rates[0])])
    return Table("Self-correction on the problems of C+, first 10 steps, in % (Table 28)",
                 ["model", "bench", "method", "wrong to right", "right to wrong", "repeat", "restart", "mean"], rows)


def final_answer(record):
    """What Table 28 compares: the box on MATH, the program on code, the text after "Final answer:" on SciKnowEval; on a
    bench of the user's own the first of the three that is there. None without one."""
    response, bench = record["response"], record["bench"]
    box = verifiers.last_boxed(response)
    program = max(re.findall(r"^```[^\n]*\n(.*?)^```", response, re.DOTALL | re.MULTILINE), key=len, default=None)
    text = response.rpartition("Final answer:")[2] if "Final answer:" in response else None
    known = {"math500": box, "arithmetic": box, "lcb": program, "mbpp": program, "sciknoweval": text}
    return known.get(bench, box or program or text)


def update_table(run, samples, steps, gpus):
    """Table 19 for one run: exploration and policy update, in both accountings of the update's compute (App. E.5).

    `samples`, `steps`: the lines of samples.jsonl and distill.jsonl. The update's hours leave out its start-up.
    """
    if run.parameters is None:
        raise BadInput(f"{run.path} has no result in the explore.json beside it: let explore.py end first.")
    here, paper, trained = measures.update_tokens(samples)
    hours = gpus * sum(s["sample_seconds"] + s["train_seconds"] for s in steps) / 3600
    rows = [["exploration", run.curves["all"][-1], 0, run.curves["petaflops"][-1], run.curves["hours"][-1]],
            ["update", here, trained, measures.petaflops(run.parameters, here, trained), hours],
            ["update, with the paper's behaviour pass", paper, trained,
             measures.petaflops(run.parameters, paper, trained), hours]]
    return Table("Cost of training (Table 19)",
                 ["stage", "forward tokens", "trained tokens", "PFLOPs", "GPU hours"], rows)


# ---------------------------------------------------------------------------------------------------------------------
# Comparisons of two methods


def all_tables(groups, paper=False):
    """The tables of one group, or of the first of two against the second, with as many seeds of the same benches."""
    independent = [group for group in groups if group.method.startswith("random")]
    leaf = [group for group in groups if group not in independent]
    tables = [result_table(groups, paper), *map(curve_table, groups), *map(repeat_table, independent)]
    if len(groups) == 1:
        return tables
    if len(groups[0].seeds) != len(groups[1].seeds) or set(groups[0].seeds[0]) != set(groups[1].seeds[0]):
        raise BadInput("--rollouts and --versus differ in models, benches or the number of seeds: name the same ones.")
    tables += [speed_table(*groups), length_table(*groups)]
    if len(leaf) == 2:
        tables.append(paired_table(*leaf))
    elif len(leaf) == 1:
        tables.append(pooled_table(leaf[0], independent[0]))
    return tables


def speed_table(ours, theirs):
    """Table 14: x of their last point / x at which our curve first reaches their last pass rate."""
    rows, pairs, means = [], list(zip(ours.curves, theirs.curves)), (seed_means(ours), seed_means(theirs))
    for name, axis in (("calls", "verifier calls"), ("petaflops", "PFLOPs"), ("hours", "GPU time")):
        if all(name in c for pair in pairs for c in pair):
            ratios = [measures.speed_up(a[name], a["pass"], b[name], b["pass"]) for a, b in [*pairs, means]]
            rows.append([axis, *ratios[:-1], over_seeds(ratios[:-1]), ratios[-1]])
    return Table(f"Speed-up of {ours.method} over {theirs.method} (x) (Table 14)",
                 ["x axis", *(f"run {i}" for i in range(1, len(pairs) + 1)), "mean", "mean curve"], rows)


def length_table(ours, theirs):
    """Table 3: ratio of mean lengths and difference of pass rates, per model and bench and averaged over them."""
    rows = []
    for key in ours.seeds[0]:
        length, passed = ([measures.mean(cells[key].curves[name][-1] for cells in group.seeds)
                           for group in (ours, theirs)] for name in ("length", "pass"))
        rows.append([*key, length[0] / length[1], 100 * (passed[0] - passed[1])])
    if len(rows) > 1:
        rows.append(["mean", "", *(measures.mean(row[i] for row in rows) for i in (2, 3))])
    return Table(f"Length and gain of {ours.method} over {theirs.method} (Table 3)",
                 ["model", "bench", "length (ratio)", "pass rate gain (pp)"], rows)


def paired_table(ours, theirs):
    """Table 8: repeat and fix rates over the problems that both have transitions of, those of all seeds together."""
    rows = []
    for key in ours.seeds[0]:
        merged = [{}, {}]
        for group, found in zip((ours, theirs), merged):
            for cells in group.seeds:
                for problem, transitions in measures.transitions(cells[key].attempts).items():
                    found.setdefault(problem, []).extend(transitions)
        rates = measures.paired_rates(*merged)
        row = [*key, rates["problems"]]
        for name in ("repeat", "fix"):
            a, b, difference, (low, high) = rates[name] or (None, None, None, (None, None))
            row += [percent(a), percent(b), percent(difference), percent(low), percent(high)]
        rows.append(row)
    return Table(f"{ours.method} / {theirs.method}: repeats and fixes, paired, with 95% bootstrap intervals (Table 8)",
                 ["model", "bench", "problems", "repeat (%)", "theirs", "Δ (pp)", "from", "to",
                  "fix (%)", "theirs", "Δ (pp)", "from", "to"], rows)


def pooled_table(ours, independent):
    """Table 9: repeats over all transitions against the base frequency in the independent samples of the same seed."""
    rows = []
    for key in ours.seeds[0]:
        rates = [measures.pooled_rates(measures.transitions(a[key].attempts), b[key].attempts)
                 for a, b in zip(ours.seeds, independent.seeds)]
        units = {"transitions": 1, "repeat": 100, "base": 100, "ratio": 1}
        rows.append([*key, *(over_seeds([None if r[name] is None else unit * r[name] for r in rates])
                             for name, unit in units.items())])
    return Table(f"Repeats of {ours.method} against independent sampling (Table 9)",
                 ["model", "bench", "transitions", "repeat (%)", "base (%)", "ratio"], rows)


# ---------------------------------------------------------------------------------------------------------------------
# Plots


def draw(path, groups):
    """Fig. 3, the pass rate against calls, compute and GPU time (mean over seeds, a band from the lowest to the
    highest), and accuracy against length, a point for each run. Without explore.json: tokens, not compute and time."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    means = [seed_means(group) for group in groups]
    axes = {"calls": "Verifier calls per problem", "all": "Tokens processed", "petaflops": "Compute (PFLOPs)",
            "hours": "GPU time (hours)"}
    names = [name for name in axes if all(name in mean for mean in means)]
    if "petaflops" in names:
        names.remove("all")
    rows, columns = (2, 2) if len(names) == 3 else (1, len(names) + 1)
    figure, panels = plt.subplots(rows, columns, figsize=(3.8 * columns, 3.0 * rows), layout="constrained")
    panels = panels.flat
    # A colour (of Okabe and Ito), a dash and a marker for each method: they differ in print and for the colour-blind.
    for group, mean, colour, dash, marker in zip(groups, means, ("#0072B2", "#D55E00"), ("-", "--"), ("o", "s")):
        rates = [[100 * c["pass"][k] for c in group.curves] for k in range(len(mean["calls"]))]
        low, middle, high = ([statistic(values) for values in rates] for statistic in (min, measures.mean, max))
        style = {"color": colour, "marker": marker, "label": group.method}
        for panel, name in zip(panels, names):
            panel.plot(mean[name], middle, dash, markersize=3.5, **style)
            panel.fill_between(mean[name], low, high, color=colour, alpha=0.2, linewidth=0)
            panel.set(xlabel=axes[name], ylabel="Cumulative pass rate (%)")
            if name in ("all", "petaflops"):
                panel.set_xscale("log")
            else:
                panel.locator_params(axis="x", nbins=5)  # a short run has long numbers of hours
        ends = [cells[key].curves for cells in group.seeds for key in cells]
        length, accuracy = ([c[name][-1] for c in ends] for name in ("length", "accuracy"))
        panels[len(names)].plot(length, [100 * a for a in accuracy], linestyle="", **style)
    panels[len(names)].set(xlabel="Mean length (tokens per answer)", ylabel="Mean accuracy (%)")
    for panel in panels:
        panel.grid(alpha=0.3)
    panels[0].legend(loc="lower right")
    figure.savefig(path, dpi=200)


# ---------------------------------------------------------------------------------------------------------------------
# One problem's attempts, to be read


def fold(text, width=100):
    """Indented, long lines of prose folded at words; code blocks stay as they are; control characters are left out."""
    lines, code = [], False
    for line in "".join(c for c in text if c in "\n\t" or c.isprintable()).split("\n"):
        code ^= line.lstrip().startswith("```")
        lines += [line] if code or len(line) <= width else textwrap.wrap(line, width, break_long_words=False)
    return textwrap.indent("\n".join(lines), "    ")


def dialogue(steps):
    """The attempts at one problem ({step: record}) as a text: the opening; each step's user turn, answer, verdict."""
    first = steps[min(steps)]
    roles = [message["role"] for message in first["context"]]
    opening = first["context"][:roles.index("assistant") if "assistant" in roles else None]
    parts = [f"Problem {first['problem']} of {first['bench']}"]
    parts += [f"[{m['role']}]\n{fold(m['content'])}" for m in opening]
    for t, record in sorted(steps.items()):
        parts.append(f"======== step {t}{', restart' if record['restart'] else ''} ========")
        if record["draft"] is not None:
            parts.append(f"[assistant: a draft, not graded]\n{fold(record['draft'])}")
        if record["context"][-1] != opening[-1]:
            parts.append(f"[user]\n{fold(record['context'][-1]['content'])}")
        verdict = "correct" if record["correct"] else "passes the public tests only" if record["reward"] else "wrong"
        notes = [f"{record['completion_tokens']} tokens"]
        if record["signature"] and not record["feedback"]:  # MATH: the content of the box
            notes.insert(0, f"answer {record['signature']}")
        if record["truncated"]:
            notes.append("truncated")
        if record["fault"]:
            notes.append(f"verifier fault: {record['fault']}")
        parts += [f"[assistant]\n{fold(record['response'])}", f"--> {verdict} ({', '.join(notes)})"]
        if record["feedback"]:
            parts.append(fold(record["feedback"]))
    return "\n\n".join(parts)


def show(paths, problem):
    """The dialogues of one problem in the given runs."""
    runs = {path: read_attempts(path) for path in paths}
    if not any(problem in attempts for attempts in runs.values()):
        known = ", ".join(list(next(iter(runs.values())))[:5])
        raise BadInput(f"there is no problem {problem} in {', '.join(runs)}; ids there are {known} ...")
    found = [f"{path}\n{dialogue(attempts[problem])}" for path, attempts in runs.items() if problem in attempts]
    return "\n\n\n".join(found)
