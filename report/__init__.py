"""What is counted from runs: evaluate.py's --rollouts, --teacher and --update.

The modes that test a model are given how: `read_training(args, cplus)`, evaluate.Training, and
`sample(args, settings, requests, out)`, evaluate.run_requests.
"""
import dataclasses
import os

from common import journal
from common.errors import BadInput, read_jsonl
from report import curves, dialogue, measures, paper, plots, tables
from report.tables import Table, percent, trace_table, update_table, with_paper


def responses_path(out):
    return os.path.splitext(out)[0] + ".jsonl"


def values_by_problem(records, key):
    """{problem id: the values of `key`, sample by sample}."""
    found = {}
    for record in records:
        found.setdefault(record["problem"], []).append(record[key])
    return found


def print_tables(args, tables):
    """Print tables, given as (Table, the paper's numbers for its rows); -> the tables as they are printed."""
    tables = [with_paper(table, numbers) if args.paper else table for table, numbers in tables]
    for table in tables:
        print(table.markdown())
    return [dataclasses.asdict(table) for table in tables]


def finish(args, settings, tables, out, **more):
    """Print the tables; write them, `more` and what they depend on into the file `out`."""
    flags = ("bench", "split", "data", "adapter", "samples", "seed", "limit", "cplus", "traces", "update")
    settings = dataclasses.asdict(settings) | {name: getattr(args, name) for name in flags}
    journal.write_json(out, {"settings": settings, "versions": journal.versions(), **more,
                             "tables": print_tables(args, tables)})
    print(f"\nNumbers: {out}   Responses: {responses_path(out)}")


def teacher_main(args, read_training, sample):
    """--teacher: accuracy of the model on the contexts that its teacher is conditioned on (Tables 5 and 29)."""
    training = read_training(args, args.cplus)
    name, lines = training.name, training.lines
    contexts = {traces: training.contexts(traces) for traces in args.traces}
    # Before the sampling: the rollouts may be those of another run.
    counts = trace_table(name, lines, training.rollouts, training.contexts)
    out = args.out or os.path.join(os.path.dirname(args.cplus), "teacher.json")
    records = sample(args, training.settings, [  # the context of sample k is the one that the trainer draws at step k
        {"problem": training.problems[p], "sample": k, "traces": traces,
         "messages": training.draw(contexts[traces][p], args.seed, k, p)}
        for traces in args.traces for p in lines for k in range(1, args.samples + 1)], out)
    rows = []
    for traces in args.traces:
        correct = values_by_problem([r for r in records if r["traces"] == traces], "correct")
        traced = [correct[p] for p in lines if contexts[traces][p] != [lines[p][0]["opening"]]]
        rows.append([*name, traces, len(lines), percent(measures.avg_and_pass(correct.values())[0])])
        if len(traced) < len(lines):
            rows.append([*name, f"{traces}, without plain prompts", len(traced),
                         percent(measures.avg_and_pass(traced)[0])])
    accuracy = Table("Teacher accuracy (Tables 5 and 29)",
                     ["model", "bench", "traces", "problems", "accuracy (%)"], rows)
    finish(args, training.settings, [(accuracy, paper.TEACHER), (counts, paper.TRACES)], out)


def update_main(args, read_training, sample):
    """--update: the cost of the policy update in a folder (App. E.5); with --internalization also Table 32."""
    distilled = curves.read_beside(os.path.join(args.update, ""), "distill.json")
    if not distilled:
        raise BadInput(f"{args.update} holds no distill.json: name the --out folder of distill.py (what updates "
                       "between the steps of an exploration cost is in its --rollouts tables).")
    cplus = distilled["settings"]["cplus"]
    steps = read_jsonl(os.path.join(args.update, "distill.jsonl"), torn_ok=True)
    run = curves.read_run(os.path.join(os.path.dirname(cplus), "rollouts.jsonl"))
    cost = update_table(run, steps, distilled.get("result", {}).get("gpus", 1)), paper.UPDATE
    if not args.internalization:
        shown = print_tables(args, [cost])
        if args.out:
            journal.write_json(args.out, shown)
        return
    training = read_training(args, cplus)
    lines = training.lines
    samples = read_jsonl(os.path.join(args.update, "samples.jsonl"), torn_ok=True)
    last = {s["problem"]: s for s in samples if s["problem"] in lines}  # samples.jsonl is in the order of the steps
    out = args.out or os.path.join(args.update, "internalization.json")
    fresh = [{"problem": training.problems[p], "sample": k, "messages": lines[p][0]["opening"]}
             for p in last for k in range(1, args.samples + 1)]
    given = [{"problem": training.problems[p], "sample": 0, "response": s["response"], "truncated": s["truncated"]}
             for p, s in last.items()]
    records = sample(args, training.settings, fresh + given, out)
    base = measures.mean(r["correct"] for r in records if r["sample"] > 0)
    update = measures.mean(r["correct"] for r in records if r["sample"] == 0)
    step = run.curves["calls"][-1]
    rollout = measures.mean(run.attempts[p][step]["correct"] for p in last)
    shares = base, update, rollout, measures.relative_gain(base, update, rollout)
    accuracy = Table("Accuracy on the training problems without context, and with it in the rollout (Table 32)",
                     ["model", "bench", "problems", "base (%)", "update (%)", f"rollout, step {step} (%)",
                      "relative gain (%)"], [[*training.name, len(last), *map(percent, shares)]])
    finish(args, training.settings, [cost, (accuracy, paper.INTERNALIZATION)], out)


def rollouts_main(args, cplus):
    """--rollouts: tables and plots over runs, or one problem of them. cplus: its problems where --cplus names one."""
    if args.show:
        print(dialogue.show(args.rollouts + args.versus, args.show))
        return
    if args.plot and os.path.splitext(args.plot)[1] not in (".png", ".pdf", ".svg"):
        raise BadInput(f"--plot {args.plot} has no known ending: name a .png, .pdf or .svg file.")
    groups = tables.read_groups(args.rollouts, args.versus)
    found = tables.all_tables(groups)
    if cplus:
        found.append((tables.correction_table(groups, cplus), paper.CORRECTION))
    shown = print_tables(args, found)
    if args.out:
        journal.write_json(args.out, shown)
    if args.plot:
        plots.draw(args.plot, groups)
