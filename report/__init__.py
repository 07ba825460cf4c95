"""What is counted from runs: evaluate.py's --rollouts, --teacher and --update.

`options` is evaluate.Options. The modes that test a model are given how: `training`, a training.Training (or
`read_training(cplus)`, which makes one of a cplus.jsonl), and `sample(settings, requests, out)`, which answers and
grades requests and returns their records in the same order.
"""
import hashlib
import json
import os

import engines
from common import journal, outputs
from common.errors import BadInput, read_jsonl
from report import curves, dialogue, measures, page, paper, plots, tables
from report.method import BASELINES, method_of
from report.tables import Table, percent, trace_table, update_table, with_paper


# ---------------------------------------------------------------------------------------------------------------------
# Numbers as they are printed and kept


def responses_path(out):
    return os.path.splitext(out)[0] + ".jsonl"


def values_by_problem(records, key):
    """{problem id: the values of `key`, sample by sample}."""
    values = {}
    for record in records:
        values.setdefault(record["problem"], []).append(record[key])
    return values


def print_tables(pairs, show_paper, made_by=()):
    """Print tables, given as (Table, the paper's numbers for its rows); -> the tables as they are printed, for JSON.

    made_by: (model, bench, settings) of the runs that they are of: only where those are the paper's are its rows shown.
    """
    printed, other = [], {}
    for model, bench, settings in made_by:
        if differ := departures(settings):
            other[model, bench] = differ
    for table, numbers in pairs:
        table = with_paper(table, numbers, other) if show_paper else table
        print(table.markdown())
        printed.append(table.as_json())
    if show_paper:
        for (model, bench), differ in other.items():
            print(f"\nThe paper's numbers for {model} on {bench} are not shown: {', '.join(differ)}.")
    return printed


def departures(settings):
    """["limit 8 (the paper: None)", ...]: where a run, an update or a test of a model of the paper is not the paper's.

    Of an exploration, what makes it another method is left out (see method.py): its rows are that method's. Settings
    that are not kept are taken as the paper's.
    """
    model = curves.model_name(settings.get("model") or "")
    known = next((known for name, known in engines.MODELS.items() if curves.model_name(name) == model), None)
    if not known:
        return []
    explored, more = settings, []
    if settings.get("cplus"):
        explored = (curves.read_beside(settings["cplus"], "explore.json") or {}).get("settings", {})
        more = [f"{name} {value} of the exploration" for name, value in method_of("leaf", explored).changes]
    usual = {name: known[name] for name in ("family", "temperature", "top_p")}
    limit = "lcb" if explored.get("bench") == "lcb" else "max_tokens"
    usual |= {"max_tokens": known[limit], "limit": None, "samples": 4}
    if settings is explored and settings.get("method") in ("leaf", "random"):
        usual["calls"] = 20 if settings.get("split") == "train" else 24
    if {"divergence", "traces"} <= settings.keys():      # distill.json
        tau = "0.001" if explored.get("bench") == "math500" else "inf"
        usual |= {"divergence": "reverse_kl", "tau": tau, "steps": 20, "batch": 128, "lr": 1e-5}
    differ = [f"{name} {settings[name]} (the paper: {value})" for name, value in usual.items()
              if str(settings.get(name, value)) != str(value)]
    behind = [explored] if explored is not settings else []
    if settings.get("update"):
        distilled = curves.read_beside(os.path.join(settings["update"], ""), "distill.json") or {}
        behind.append(distilled.get("settings", {}))
    if settings.get("adapter"):
        behind.append(engines.adapter_run(settings["adapter"]))
    return list(dict.fromkeys([*differ, *more, *(text for run in behind for text in departures(run))]))


# what the numbers of a test depend on, beside its settings
FLAGS = ("bench", "split", "data", "adapter", "samples", "seed", "limit", "cplus", "traces", "update",
         "strict_math_verify")


def test_settings(options, settings):
    """What the file of a test keeps of its settings."""
    return settings.kept() | {name: getattr(options, name) for name in FLAGS}


def adapter_hash(adapter):
    """Of the weights in a folder, which a run that goes on replaces; None without an adapter."""
    if adapter is None:
        return None
    with open(os.path.join(adapter, "adapter_model.safetensors"), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def begin_test(options, settings, requests, out):
    """Keep in `out` what a test depends on, or compare it with the test that is there.

    Errors: BadInput, if that is another one.
    """
    old, path = outputs.load_json(out) or {}, responses_path(out)
    is_begun = "tables" in old or not outputs.is_empty(path)
    if is_begun and not old:
        raise BadInput(f"{path} holds answers and {out}, which says to what, is gone: put it back, or move the "
                       "answers away.")
    requested = [(journal.problem_hash(request["problem"]), request.get("messages"),
                  request.get("response")) for request in requests]
    hashes = {"requests": hashlib.sha256(json.dumps(requested).encode()).hexdigest()[:16],
              "adapter_weights": adapter_hash(options.adapter)}
    kept = test_settings(options, settings)
    if is_begun:
        journal.check_settings(out, old["settings"], kept)
        # Tests of earlier code have no hashes.
        for name, what in (("requests", "problems or prompts"), ("adapter_weights", "weights in the adapter")):
            if old.get(name, hashes[name]) != hashes[name]:
                raise BadInput(f"{out} holds a test of other {what}: put back their files, or name another file with "
                               "--out.")
    else:
        old = {}
    begun = {"settings": kept, "versions": journal.versions(), **hashes}
    journal.write_json(out, old | begun)


def of_rows(pairs, settings):
    """What print_tables needs to know, if all rows are of one run, update or test."""
    return [(*row[:2], settings) for table, _ in pairs for row in table.rows]


def finish(options, pairs, out, **more):
    """Print the tables; write them and `more` into the file `out`, which holds what they depend on."""
    # What the test kept there when it began: its settings, versions and requests.
    begun = journal.read_json(out)
    printed = print_tables(pairs, options.paper, of_rows(pairs, begun["settings"]))
    journal.write_json(out, begun | more | {"tables": printed})
    print(f"\nNumbers: {out}   Responses: {responses_path(out)}")


# ---------------------------------------------------------------------------------------------------------------------
# --teacher


def teacher_main(options, training, sample):
    """Accuracy of the model on the contexts that its teacher is conditioned on (Tables 5 and 29)."""
    lines = training.lines
    contexts = {traces: training.contexts(traces) for traces in options.traces}
    # Before the sampling: the rollouts may be those of another run.
    counts = trace_table(training.name, lines, training.rollouts, training.contexts)
    requests = []
    for traces in options.traces:
        for problem in lines:
            for k in range(1, options.samples + 1):
                # the context of sample k is the one that the trainer draws at step k
                context = training.draw(contexts[traces][problem], options.seed, k, problem)
                requests.append({"problem": training.problems[problem], "sample": k, "traces": traces,
                                 "messages": context})
    out = options.out or os.path.join(os.path.dirname(options.cplus), "teacher.json")
    records = sample(training.settings, requests, out)
    accuracy = teacher_table(training, contexts, records)
    finish(options, [(accuracy, paper.TEACHER), (counts, paper.TRACES)], out)


def teacher_table(training, contexts, records):
    """contexts: {traces: {problem id: contexts}}, in the order of the rows."""
    rows = []
    for traces in contexts:
        correct = values_by_problem([record for record in records if record["traces"] == traces], "correct")
        rows.append([*training.name, traces, len(correct), percent(measures.avg_at_k(correct.values()))])
        traced = []  # the problems whose context is more than the plain prompt
        for problem, lines in training.lines.items():
            if contexts[traces][problem] != [lines[0]["opening"]]:
                traced.append(correct[problem])
        if len(traced) < len(correct):
            rows.append([*training.name, f"{traces}, without plain prompts", len(traced),
                         percent(measures.avg_at_k(traced))])
    return Table("Teacher accuracy (Tables 5 and 29)", ["model", "bench", "traces", "problems", "accuracy (%)"], rows)


# ---------------------------------------------------------------------------------------------------------------------
# --update


def update_main(options, read_training, sample):
    """The cost of the policy update in a folder (App. E.5); with --internalization also Table 32."""
    distilled = curves.read_beside(os.path.join(options.update, ""), "distill.json")
    if distilled:
        run, table = distilled_table(options.update, distilled)
        settings = distilled["settings"]
    else:
        settings, table = baseline_table(options.update)
    if options.internalization:
        if not distilled:
            raise BadInput(f"--internalization reads what distill.py sampled, and {options.update} is a baseline's: "
                           "leave it out.")
        training = read_training(distilled["settings"]["cplus"])
        internalization_main(options, training, sample, run, (table, paper.UPDATE))
        return
    pairs = [(table, paper.UPDATE)]
    printed = print_tables(pairs, options.paper, of_rows(pairs, settings))
    if options.out:
        journal.write_json(options.out, printed)


def distilled_table(folder, distilled):
    """(the run whose C+ it learnt from, the costs) of the update in `folder`; distilled: its distill.json."""
    run = curves.read_run(os.path.join(os.path.dirname(distilled["settings"]["cplus"]), "rollouts.jsonl"))
    steps = read_jsonl(os.path.join(folder, "distill.jsonl"), torn_ok=True)
    return run, update_table(run, steps, distilled.get("result", {}).get("gpus", 1))


def baseline_table(folder):
    """(settings, costs) of a run of baselines/. Errors: BadInput, if there is none in `folder`."""
    beside = os.path.join(folder, "")
    learned, explored = (curves.read_beside(beside, name) for name in ("sft.json", "explore.json"))
    if learned:
        run = curves.read_run(os.path.join(os.path.dirname(learned["settings"]["cplus"]), "rollouts.jsonl"))
        path = f"{beside}rewrites.jsonl"
        rewrites = read_jsonl(path, torn_ok=True) if os.path.exists(path) else []
        steps = read_jsonl(f"{beside}sft.jsonl", torn_ok=True)
        return learned["settings"], tables.sft_table(run, rewrites, steps, learned.get("result", {}))
    if not explored or explored["settings"].get("method") not in BASELINES:
        raise BadInput(f"{folder} holds no distill.json: name the --out folder of distill.py or of a baseline (what "
                       "updates between the steps of an exploration cost is in its --rollouts tables).")
    run = curves.read_run(f"{beside}rollouts.jsonl")
    records, steps = (read_jsonl(f"{beside}{name}.jsonl", torn_ok=True) for name in ("rollouts", run.method.kind))
    return explored["settings"], tables.online_table(run, records, steps)


def internalization_main(options, training, sample, run, cost):
    """What the policy keeps without context (Table 32), below the table of the costs."""
    responses = read_jsonl(os.path.join(options.update, "samples.jsonl"), torn_ok=True)
    # the last response to each problem: samples.jsonl is in the order of the steps
    last = {response["problem"]: response for response in responses if response["problem"] in training.lines}
    requests = []
    for problem in last:
        for k in range(1, options.samples + 1):
            requests.append({"problem": training.problems[problem], "sample": k,
                             "messages": training.lines[problem][0]["opening"]})
    for problem, response in last.items():  # sample 0: it is there already, and only graded
        requests.append({"problem": training.problems[problem], "sample": 0, "response": response["response"],
                         "truncated": response["truncated"]})
    out = options.out or os.path.join(options.update, "internalization.json")
    records = sample(training.settings, requests, out)
    step = run.curves["calls"][-1]
    base = measures.mean(record["correct"] for record in records if record["sample"] > 0)
    update = measures.mean(record["correct"] for record in records if record["sample"] == 0)
    rollout = measures.mean(run.attempts[problem][step]["correct"] for problem in last)
    shares = base, update, rollout, measures.relative_gain(base, update, rollout)
    accuracy = Table("Accuracy on the training problems without context, and with it in the rollout (Table 32)",
                     ["model", "bench", "problems", "base (%)", "update (%)", f"rollout, step {step} (%)",
                      "relative gain (%)"], [[*training.name, len(last), *map(percent, shares)]])
    finish(options, [cost, (accuracy, paper.INTERNALIZATION)], out)


# ---------------------------------------------------------------------------------------------------------------------
# --rollouts


def rollouts_main(options, cplus):
    """Tables and plots over runs, or one problem of them. cplus: its problems where --cplus names one."""
    if options.show:
        print(dialogue.show([*options.rollouts, *options.versus], options.show))
        return
    groups = tables.read_groups(options.rollouts, options.versus)
    pairs = tables.all_tables(groups)
    if cplus:
        pairs.append((tables.correction_table(groups, cplus), paper.CORRECTION))
    made_by = [(run.model, run.bench, run.settings) for run in tables.runs_of(groups)]
    printed = print_tables(pairs, options.paper, made_by)
    if options.out:
        journal.write_json(options.out, printed)
    if options.plot:
        plots.draw(options.plot, groups)
    if options.html:
        page.write_runs(options.html, [*options.rollouts, *options.versus])
