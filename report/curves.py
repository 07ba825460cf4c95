"""Runs of explore.py, read back: their curves, cut at the last step that counts, averaged over benches and seeds."""
import dataclasses
import os
import sys

from common.errors import BadInput, read_jsonl
from common.journal import read_json
from report import measures
from report.method import BASELINES, Method, method_of


@dataclasses.dataclass
class RunRecord:
    """One rollouts.jsonl with what explore.json beside it says."""
    path: str
    attempts: dict      # {problem id: {step: record}} of steps 1..last, the last one that counts (App. C.4)
    bench: str
    method: Method
    model: str          # see `model_name`
    seed: int
    curves: dict        # name -> values at steps 1..last; "petaflops" and "hours" only where the run has ended
    parameters: float | None    # N of Eq. 5, from explore.json
    settings: dict      # of explore.json; {} without it
    gpus: int = 1       # of its result


@dataclasses.dataclass
class Group:
    """The runs of one method: the same models and benches for each seed."""
    method: Method
    runs: dict          # (model, bench) -> [RunRecord of each seed], cut at the last step that the seed's runs share
    curves: list        # one `overall` per seed


# ---------------------------------------------------------------------------------------------------------------------
# Files of a run


def read_attempts(path):
    """{problem id: {step: record}} of a rollouts.jsonl; a torn last line is left out with a note."""
    records = read_jsonl(path, torn_ok=True)
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
    return read_json(beside) if os.path.isfile(beside) else None


def model_name(model):
    """The last part of a Hub id or folder: the paper's models keep their name wherever they lie. Of a name that says
    nothing (distill.py --merge makes it), the last two."""
    folder, name = os.path.split(os.path.normpath(model))
    return os.path.join(os.path.basename(folder), name) if name == "merged" else name


def bench_name(bench, split):
    return f"{bench} (train)" if split == "train" else bench


# ---------------------------------------------------------------------------------------------------------------------
# One run


def read_run(path, number=1):
    """The run in `path`; `number` stands for the seed where there is no explore.json."""
    attempts, explored = read_attempts(path), read_beside(path, "explore.json") or {}
    settings, result = explored.get("settings", {}), explored.get("result", {})  # no result: it has not ended yet
    first = next(record for steps in attempts.values() for record in steps.values())
    failed = result.get("failed", {})
    attempts = {problem: {} for problem in failed} | attempts  # also those that never fitted the model's window
    # A run that was stopped has no result, but its problems stand beside it.
    total = result.get("problems") or len(read_beside(path, "problems.json") or {})
    if len(attempts) < total:
        raise BadInput(f"{path} has answers to {len(attempts)} of its {total} problems only: go on with "
                       "the same explore.py command, with a larger --gpu-hours if its cap ended it.")
    complete = measures.complete_steps(attempts)
    if complete == 0:
        raise BadInput(f"{path}: no step is complete for every problem ({why_missing(attempts, 1, failed)}): go on "
                       "with the same explore.py command.")
    curves = run_curves(path, attempts, complete, settings, result)
    last = last_step(path, curves, complete, settings)
    note_cut(path, attempts, last, complete, settings, failed)
    counted = {problem: {t: r for t, r in steps.items() if t <= last} for problem, steps in attempts.items()}
    return RunRecord(
        path, counted, bench_name(first["bench"], settings.get("split")), method_of(first["method"], settings),
        model_name(settings.get("model", "model")), settings.get("seed", number),
        {name: values[:last] for name, values in curves.items()}, result.get("parameters"), settings,
        result.get("gpus", 1))


def last_step(path, curves, complete, settings):
    """The last step that counts, min(K, k_5h) of App. C.4: of the `complete` ones, the last within the cap."""
    if "hours" not in curves:
        return complete
    cap = settings["gpu_hours"] or float("inf")
    last = sum(hours <= cap for hours in curves["hours"])
    if last == 0:
        raise BadInput(f"{path}: step 1 alone took more than its cap of {cap:g} GPU hours: give explore.py a "
                       "larger --gpu-hours.")
    return last


def note_cut(path, attempts, last, complete, settings, failed):
    """Say on stderr why the answers after step `last` do not count, if there are any."""
    most = max(step for steps in attempts.values() for step in steps)
    if last == most:
        return
    if last < complete:
        why = f"the last one within its cap of {settings['gpu_hours']:g} GPU hours"
    else:
        why = why_missing(attempts, last + 1, failed)
    print(f"Note: {path} goes up to step {most}, and counts up to step {last}: {why}.", file=sys.stderr)


def why_missing(attempts, step, failed):
    """Why the steps from `step` on do not count, in words; `failed`: {problem id: why it cannot go on}."""
    behind = [problem for problem, steps in attempts.items() if step not in steps]
    example = min(behind, key=lambda problem: problem not in failed)  # the first that failed, else the first
    reason = f" ({failed[example]})" if example in failed else ""
    return f"step {step} is missing for {len(behind)} of {len(attempts)} problems, such as {example}{reason}"


def run_curves(path, attempts, last, settings, result):
    """{name: values at steps 1..last} of the run in `path`; `settings` and `result`: those of its explore.json."""
    curves = {"calls": [*range(1, last + 1)],
              "pass": measures.pass_curve(attempts, last),
              "accuracy": measures.per_answer_curve(attempts, last, "correct"),
              "length": measures.per_answer_curve(attempts, last, "completion_tokens"),
              "faults": measures.fault_curve(attempts, last),
              **measures.token_curves(attempts, last)}
    every, journal = settings.get("update_every"), os.path.join(os.path.dirname(path), "updates", "distill.jsonl")
    updates = read_jsonl(journal, torn_ok=True) if every and os.path.exists(journal) else []
    forward, trained, update_seconds = measures.update_curves(updates, every or 1, last)
    if updates:
        totals = [sum(pair) for pair in zip(curves["all"], forward)]
        curves |= {"update": forward, "trained": trained, "all": totals}
    if settings.get("method") in BASELINES:  # each answer has its own part of its update
        forward, trained = (measures.total_curve(attempts, last, name) for name in ("forward_tokens", "trained_tokens"))
        totals = [sum(pair) for pair in zip(curves["all"], forward)]
        curves |= {"update": forward, "trained": trained, "all": totals}
    if result:
        pairs = zip(curves["all"], trained)
        curves["petaflops"] = [measures.petaflops(result["parameters"], *pair) for pair in pairs]
        by = "completion_tokens" if settings.get("method") == "random" else "sample_seconds"
        if settings.get("method") in BASELINES:
            by = "step_seconds"
        curves["hours"] = measures.hour_curve(attempts, last, result["startup_seconds"], wall_seconds(attempts, result),
                                              result["gpus"], update_seconds, by)
    return curves


def wall_seconds(attempts, result):
    """Wall time of a run without its start-up; one that goes on has taken longer than its explore.json knows."""
    elapsed = max(r.get("elapsed_seconds", 0) for steps in attempts.values() for r in steps.values())
    return max(result["wall_seconds"], elapsed - result["startup_seconds"])


# ---------------------------------------------------------------------------------------------------------------------
# Several runs


def read_group(paths):
    """The runs of one method; errors: BadInput, see `group_of`."""
    return group_of([read_run(path, number) for number, path in enumerate(paths, 1)])


def group_of(runs):
    """-> Group; errors: BadInput if the runs are of several methods, or if the seeds do not match."""
    cells = {}
    for run in sorted(runs, key=lambda run: run.seed):
        if run.method != runs[0].method:
            raise BadInput(f"{runs[0].path} is {runs[0].method} and {run.path} is {run.method}: compare two methods "
                           "with --rollouts and --versus.")
        cell = cells.setdefault((run.model, run.bench), [])
        if cell and cell[-1].seed == run.seed:
            raise BadInput(f"{cell[-1].path} and {run.path} are both {run.model} on {run.bench} with seed {run.seed}: "
                           "name one of them.")
        cell.append(run)
        check_alike(cell[0], run, run.settings.keys() - FREE)
    if len({tuple(run.seed for run in cell) for cell in cells.values()}) > 1:
        raise BadInput("the seeds have different models or benches: name every run of each seed, or fewer seeds.")
    seeds = list(zip(*cells.values()))
    if not runs[0].method.changes:
        for same_seed in seeds:
            cut_at_common_step(same_seed)
    return Group(runs[0].method, cells, [overall(same_seed) for same_seed in seeds])


def cut_at_common_step(runs):
    """Cut the runs of one seed at the last step that counts on all benches of a model (App. C.4, Table 11).

    The ablations keep each bench's own last step (Tables 22, 23, 25).
    """
    for model in {run.model for run in runs}:
        own = [run for run in runs if run.model == model]
        last = min(len(run.curves["calls"]) for run in own)
        for run in own:
            run.curves = {name: values[:last] for name, values in run.curves.items()}


# What may differ between the seeds of a method, and what may not between two methods that are compared.
FREE = {"seed", "model", "data", "engine", "gpu_memory", "tensor_parallel", "data_parallel"}
DECODING = {"calls", "temperature", "top_p", "max_tokens", "family"}


def check_alike(one, other, names):
    """BadInput unless two runs have the same problems, model and settings `names`, as far as both know them."""
    differ = [name for name in sorted(names & one.settings.keys() & other.settings.keys())
              if one.settings[name] != other.settings[name]]
    models = [run.settings.get("model", "") for run in (one, other)]
    if any(map(os.path.isdir, models)) and len({os.path.realpath(model) for model in models}) > 1:
        differ.insert(0, "model")
    pairs = [f"{name} = {one.settings[name]} and {other.settings[name]}" for name in differ[:3]]
    if one.attempts.keys() != other.attempts.keys():
        pairs.insert(0, f"problems ({len(one.attempts)} and {len(other.attempts)} of them)")
    if pairs:
        raise BadInput(f"{one.path} and {other.path} differ in {', '.join(pairs)}: name runs that are alike but for "
                       "the seed, or compare two methods on the same problems, calls and decoding.")


RATES = ("calls", "pass", "accuracy", "length")  # averaged over benches; all other curves are costs, which add up


def overall(runs):
    """Curves of one seed over its benches and models: rates averaged and costs summed over benches, then averaged over
    models (Fig. 3)."""
    models = []
    for model in dict.fromkeys(run.model for run in runs):
        benches = [run.curves for run in runs if run.model == model]
        models.append(mean_curves(benches))
        for name, values in models[-1].items():
            if name not in RATES:
                models[-1][name] = [len(benches) * value for value in values]
    return mean_curves(models)


def mean_curves(parts):
    """The mean of each curve that all `parts` have, step by step, cut at the last step that all of them reached."""
    means = {}
    for name in parts[0]:
        if all(name in curves for curves in parts):
            steps = zip(*(curves[name] for curves in parts))
            means[name] = [measures.mean(values) for values in steps]
    return means
