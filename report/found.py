"""What has ended in a folder, for evaluate.py --tables: known by what its files hold, named so that it can be pooled.

Runs of the same model, method and bench that differ in a setting beside the seed have that setting in their method's
name: only seeds are pooled.
"""
import dataclasses
import hashlib
import os

import engines
import report
from common import journal, outputs
from common.errors import BadInput
from report import curves, tests
from report.curves import FREE, bench_name, model_name
from report.method import BASELINES, baseline_of, method_of
from report.tables import Table

PLACES = {"cplus", "contexts", "pairs"}  # of an update's settings: what one seed's exploration found


@dataclasses.dataclass
class Item:
    """A run, an update or a test that has ended."""
    path: str
    model: str
    method: str        # or the policy
    bench: str
    seed: int
    alike: dict        # {setting: value}: what its numbers depend on, the seed apart
    content: object    # curves.RunRecord; {stage: (PFLOPs, GPU hours)}; the dict of a test


def find(folder, notes):
    """-> (Items of runs, of updates, of tests, tables that tests keep). What cannot be read is said in `notes`."""
    runs, updates, tested, stored = [], [], [], []
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(place, name)
            try:
                if name == "explore.json":
                    runs += run_items(path)
                if name in ("explore.json", "distill.json", "sft.json"):
                    updates += update_items(path)
                elif name.endswith(".json") and outputs.is_test(path):
                    add_test(path, tested, stored)
            except BadInput as error:
                notes.append(str(error))
    return tuple(named(items, notes) for items in (runs, updates, tested)) + (stored,)


def ended(path):
    """The settings of the run whose file this is. Errors: BadInput, if it has not ended."""
    content = journal.read_json(path)
    if "result" not in content:
        raise BadInput(f"{path} is of a run that has not ended: its command goes on.")
    return content["settings"]


def kept(settings, prefix=""):
    """What runs must share to be pooled. A model is known by its name, a local one by its place too."""
    model = settings.get("model", "")
    place = {"model": os.path.realpath(model) if os.path.isdir(model) else ""}
    free = FREE | PLACES | {"bench", "split"}
    return {f"{prefix}{name}": str(value) for name, value in (settings | place).items()
            if name not in free or name in place}


def of_problems(names):
    digest = hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:6]
    return {"problems": f"{len(names)} ({digest})"}


def run_items(path):
    settings = ended(path)
    run = curves.read_run(os.path.join(os.path.dirname(path), "rollouts.jsonl"))
    return [Item(run.path, run.model, str(run.method), run.bench, run.seed,
                 kept(settings) | of_problems(run.attempts), run)]


def update_items(path):
    """The costs of an update, stage by stage; of explore.json, those of a baseline that trains while it explores."""
    content, folder = journal.read_json(path), os.path.dirname(path)
    settings = content.get("settings", {})
    is_training = settings.get("split") == "train" or str(settings.get("bench")).endswith(".jsonl")
    if os.path.basename(path) == "explore.json" and not (settings.get("method") in BASELINES and is_training):
        return []
    ended(path)
    is_distilled = os.path.basename(path) == "distill.json"
    _, table = report.distilled_table(folder, content) if is_distilled else report.baseline_table(folder)
    stages = {stage: numbers for _, _, stage, _, _, *numbers in table.rows}
    policy, bench, alike = learned(settings)
    return [Item(path, model_name(settings["model"]), policy, bench, settings["seed"], alike, stages)]


def learned(settings):
    """(policy, training set, what must be alike) of an adapter; settings: of the run that made it."""
    alike, explored = kept(settings), settings
    if "cplus" in settings:
        explored = (curves.read_beside(settings["cplus"], "explore.json") or {}).get("settings", {})
        alike |= kept(explored, "explored ")
    policy = baseline_of(settings)
    if not policy:
        usual = {"divergence": "reverse_kl", "traces": "success"}
        changes = [f"{name} {settings[name]}" for name in usual if settings.get(name, usual[name]) != usual[name]]
        method = method_of("leaf", explored)
        policy = ", ".join(["adapter", *changes, *(f"{name} {value}" for name, value in method.changes)])
    return policy, bench_name(explored.get("bench", "unknown"), explored.get("split")), alike


def add_test(path, tested, stored):
    """The test in `path` as an Item, or the tables of --teacher and --internalization that it holds."""
    content = journal.read_json(path)
    settings, adapter = content["settings"], content["settings"]["adapter"]
    if "tables" not in content:
        raise BadInput(f"{path} is of a test that has not ended: its command goes on.")
    if not settings["bench"]:
        for table in content["tables"]:
            rows = [[tuple(value) if isinstance(value, list) else value for value in row] for row in table["rows"]]
            stored.append((Table(f"{table['title']}: {path}", table["columns"], rows), {}))
        return
    bench, policy = bench_name(settings["bench"], settings["split"]), "base model"
    # Tests of earlier code keep fewer settings.
    alike = {name: str(settings[name]) for name in tests.COMPARED if name in settings}
    alike |= of_problems(content["problems"]["correct"])
    alike |= {"model": kept(settings)["model"]}
    run = engines.adapter_run(adapter) if adapter else {}
    if adapter:
        policy, source, made = learned(run)
        alike |= {f"adapter's {name}": value for name, value in made.items()}
        alike["adapter"] = name if (name := os.path.basename(adapter)).startswith("step_") else ""
        if source.removesuffix(" (train)") != bench:
            policy += f", trained on {source}"
    tested.append(Item(path, model_name(settings["model"]), policy, bench, run.get("seed", settings["seed"]), alike,
                       content))


def named(items, notes):
    """The Items whose seeds can be pooled: those that differ in a setting from others of their name have it added."""
    pools, kinds = {}, {}
    for item in items:
        pools.setdefault((item.model, item.method, item.bench), []).append(item)
    for pool in pools.values():
        names = sorted({name for item in pool for name in item.alike})
        differ = [name for name in names if len({item.alike[name] for item in pool if name in item.alike}) > 1]
        for item in pool:
            changes = ", ".join(f"{name} {item.alike.get(name, 'unknown')}" for name in differ)
            item.method += f" ({changes})" if changes else ""
            if isinstance(item.content, curves.RunRecord):
                item.content.method = dataclasses.replace(item.content.method, folder=changes)
            key = item.model, item.method, item.bench, item.seed
            if key in kinds:
                notes.append(f"{item.path} is left out: {kinds[key].path} has the same method, bench and seed.")
            kinds.setdefault(key, item)
    return list(kinds.values())


def cells(items):
    """{(model, method): {bench: {seed: content}}}"""
    found = {}
    for item in sorted(items, key=lambda item: item.seed):
        found.setdefault((item.model, item.method), {}).setdefault(item.bench, {})[item.seed] = item.content
    return found


def common_seeds(benches, what, notes):
    """The seeds of all benches, over which a mean of benches is taken; [] and a note where they differ."""
    seeds = list(next(iter(benches.values())))
    if any(list(others) != seeds for others in benches.values()):
        notes.append(f"{' '.join(what)}: no mean over benches, as they have different seeds.")
        return []
    return seeds
