"""Accuracy of a model or an adapter on a bench, and what is counted from the files of explore.py and distill.py.

    python evaluate.py --bench math500 --adapter out/adapter                              # avg@4, pass@4 (App. E.2)
    python evaluate.py --rollouts out/rollouts.jsonl --versus random/rollouts.jsonl --plot curve.png    # App. A, C.4, D
    python evaluate.py --rollouts out/rollouts.jsonl --show PROBLEM_ID                    # one problem as a dialogue
    python evaluate.py --teacher --cplus out/cplus.jsonl --traces success failure random  # Tables 5, 27 and 29
    python evaluate.py --update out [--internalization]                                   # cost (App. E.5); Table 32

Tables are Markdown on standard output; --out keeps the same numbers as JSON (pairs are mean and deviation over seeds).
"""
import argparse
import asyncio
import dataclasses
import os
import sys
import time
from collections import Counter

from tqdm import tqdm

import curves
import data
import distill
import engine
import measures
import paper
import prompts
import report
import runs
import verifiers
from curves import bench_name, model_name
from report import Table, percent, with_paper

# ---------------------------------------------------------------------------------------------------------------------
# Sampling and grading


async def answer(request, settings, seed, adapter, sampler, graders):
    """Sample one response to request["messages"], unless the request brings its "response"; grade it on all tests.

    request: {"problem": Problem, "sample": number from 1, "messages" (or "response" and "truncated"), ...}. Returns it
    with the problem's id instead of the problem, and the outcome: a line of the responses file.
    """
    problem = request["problem"]
    record = request | {"problem": problem.id, "bench": problem.bench}
    if "messages" in request:
        prompt = sampler.encode(request["messages"])
        record["seed"] = engine.request_seed(seed, problem.id, request["sample"], "test")
        try:
            sample = await sampler.sample(prompt, seed=record["seed"], max_tokens=settings.max_tokens, adapter=adapter,
                                          temperature=settings.temperature, top_p=settings.top_p)
        except engine.ContextTooLong as error:  # what a model cannot read, it does not solve
            tqdm.write(f"Problem {problem.id} counts as not solved: {error}", file=sys.stderr)
            return record | {"prompt_tokens": len(prompt), "completion_tokens": 0, "response": "", "truncated": True,
                             "correct": 0, "feedback": "", "fault": str(error)}
        n = len(sample.token_ids)
        record |= {"prompt_tokens": len(prompt), "completion_tokens": n, "response": sample.text,
                   "truncated": sample.finish_reason == "length" or n >= settings.max_tokens}
    verdict, _ = await verifiers.grade(problem, record["response"], record["truncated"], sampler, graders)
    return record | {"correct": verdict.correct, "feedback": verdict.feedback, "fault": verdict.fault}


async def answer_all(requests, settings, seed, adapter, path):
    """`answer` every request, all in flight at once: the engine batches them. -> records in the order of the requests.

    A line goes to the file `path` as soon as it is graded.
    """
    file = open(path, "w")
    sampler, graders = await engine.start(settings, adapters=adapter is not None), verifiers.Graders()
    begin, bar, done = time.time(), tqdm(total=len(requests), unit="answer", disable=None), Counter()
    records = [None] * len(requests)

    async def one(i, request):
        records[i] = record = await answer(request, settings, seed, adapter, sampler, graders)
        runs.append(file, record)
        done.update(answers=1, correct=record["correct"], tokens=record.get("completion_tokens", 0))
        speed = done["tokens"] / (time.time() - begin)
        bar.set_postfix_str(f"{done['correct'] / done['answers']:.1%} correct, {speed:,.0f} tokens/s")
        bar.update()

    try:
        await engine.side_by_side(one(i, request) for i, request in enumerate(requests))
        return records
    finally:
        graders.close()
        sampler.close()
        bar.close()
        file.close()


def responses_path(out):
    return os.path.splitext(out)[0] + ".jsonl"


def make_room(path):
    """Make the folder that the file `path` will stand in; BadInput if that cannot be."""
    folder = os.path.dirname(path) or "."
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise data.BadInput(f"the folder of {path} cannot be made ({error.strerror}): name another file.") from None
    if os.path.isdir(path) or not os.access(folder, os.W_OK):
        raise data.BadInput(f"{path} cannot be written: name a file in a folder of yours.")


def run_requests(args, settings, requests, out):
    """-> records. The responses go to the .jsonl beside the file `out`."""
    make_room(out)
    print(f"{engine.describe(settings)}, adapter {args.adapter or 'none'}", flush=True)
    try:
        return asyncio.run(answer_all(requests, settings, args.seed, args.adapter, responses_path(out)))
    except KeyboardInterrupt:
        print(f"\nStopped. What is graded stands in {responses_path(out)}; the same command starts again.",
              file=sys.stderr)
        sys.exit(130)


def show(args, tables):
    """Print tables, given as (Table, the paper's numbers for its rows); -> the tables as they are printed."""
    tables = [with_paper(table, numbers) if args.paper else table for table, numbers in tables]
    for table in tables:
        print(table.markdown())
    return [dataclasses.asdict(table) for table in tables]


def finish(args, settings, tables, out, **more):
    """Print the tables; write them, `more` and what they depend on into the file `out`."""
    flags = ("bench", "split", "data", "adapter", "samples", "seed", "limit", "cplus", "traces", "update")
    settings = dataclasses.asdict(settings) | {name: getattr(args, name) for name in flags}
    runs.write_json(out, {"settings": settings, "versions": runs.versions(), **more, "tables": show(args, tables)})
    print(f"\nNumbers: {out}   Responses: {responses_path(out)}")


# ---------------------------------------------------------------------------------------------------------------------
# avg@k and pass@k of a model or an adapter (App. E.2)


def values_by_problem(records, key):
    """{problem id: the values of `key`, sample by sample}."""
    found = {}
    for record in records:
        found.setdefault(record["problem"], []).append(record[key])
    return found


def bench_main(args):
    """--bench: avg@n and pass@n."""
    settings = engine.settings(args, args.bench)
    if args.adapter:
        engine.check_adapter(args.adapter, settings.model)
    problems = data.load(args.bench, args.split, args.data, args.limit)
    name, n = os.path.splitext(os.path.basename(args.bench))[0], args.samples
    out = args.out or os.path.join("out", f"{name}-{'adapter' if args.adapter else 'base'}.json")
    begin = time.time()
    records = run_requests(args, settings, [
        {"problem": problem, "sample": k, "messages": prompts.opening(problem, settings.family)}
        for problem in problems for k in range(1, n + 1)], out)
    correct = values_by_problem(records, "correct")
    average, passed = measures.avg_and_pass(correct.values())
    result = {"problems": len(correct), "avg": average, "pass": passed,  # shares in [0, 1]
              "length": measures.mean(r["completion_tokens"] for r in records),
              "truncated": measures.mean(r["truncated"] for r in records),
              "faults": dict(Counter(r["fault"] for r in records if r["fault"])),
              "samples": n, "wall_seconds": time.time() - begin}
    row = [model_name(settings.model), bench_name(args.bench, args.split), "adapter" if args.adapter else "base model",
           len(correct), 100 * average, 100 * passed, result["length"], 100 * result["truncated"],
           sum(result["faults"].values())]
    table = Table(f"Test of {args.adapter or 'the base model'} (Tables 18 and 21)",
                  ["model", "bench", "policy", "problems", f"avg@{n} (%)", f"pass@{n} (%)", "tokens per answer",
                   "truncated (%)", "verifier faults"], [row])
    finish(args, settings, [(table, paper.TESTS)], out, result=result,
           problems={"correct": correct, "completion_tokens": values_by_problem(records, "completion_tokens")})


# ---------------------------------------------------------------------------------------------------------------------
# The training problems: teacher accuracy, and what the policy keeps without context (App. G.4, G.5)


def training_run(args, cplus):
    """Of the run that wrote `cplus`: engine settings, [model, bench], {problem id: lines of C+}, {id: Problem}, and the
    records of its rollouts."""
    lines, explored = distill.read_cplus(cplus), curves.read_beside(cplus, "explore.json")
    if not explored:
        raise data.BadInput(f"there is no explore.json beside {cplus} to say what its bench is: name the cplus.jsonl "
                            "in the folder of its run.")
    lines, bench = dict(list(lines.items())[:args.limit]), explored["settings"]
    first = next(iter(lines.values()))[0]
    distill.as_explored(args, first)
    problems = {p.id: p for p in data.load(bench["bench"], bench["split"], args.data or bench["data"])}
    if missing := [problem for problem in lines if problem not in problems]:
        raise data.BadInput(f"{bench['bench']} has no problem {missing[0]}, which {cplus} names: restore the file of "
                            "problems.")
    name = [model_name(args.model), bench_name(first["bench"], bench["split"])]
    return engine.settings(args, first["bench"]), name, lines, problems, distill.read_rollouts(cplus)


def trace_table(name, lines, rollouts):
    """Table 27: how many contexts of each kind the teachers may get."""
    failure = distill.teacher_contexts(lines, "failure", rollouts)
    plain = [p for p in lines if failure[p] == [lines[p][0]["opening"]]]
    failures, pairs = sum(len(failure[p]) for p in lines if p not in plain), sum(map(len, lines.values()))
    restarts = {(r["problem"], r["step"]) for r in rollouts if r["restart"]}
    restart = sum((p, line["step"]) in restarts for p in lines for line in lines[p])
    try:
        replaced = distill.teacher_contexts(lines, "random", rollouts)
        own = {(r["problem"], r["context"][-1]["content"]) for r in rollouts if not r["restart"]}
        others = sum((p, context[-1]["content"]) not in own for p in lines
                     for line, context in zip(lines[p], replaced[p]) if (p, line["step"]) not in restarts)
        random = pairs - restart
    except data.BadInput:  # the rollouts hold one feedback text alone: there are no random traces
        others = random = None
    return Table("Contexts of the training problems (Table 27)",
                 ["model", "bench", "problems", "successful per problem", "failure per problem", "plain prompt",
                  "random", "from other problems", "restart"],
                 [[*name, len(lines), pairs / len(lines), failures / len(lines), len(plain), random, others, restart]])


def teacher_main(args):
    """--teacher: accuracy of the model on the contexts that its teacher is conditioned on (Tables 5 and 29)."""
    settings, name, lines, problems, rollouts = training_run(args, args.cplus)
    contexts = {traces: distill.teacher_contexts(lines, traces, rollouts) for traces in args.traces}
    counts = trace_table(name, lines, rollouts)  # before the sampling: rollouts may be those of another run
    out = args.out or os.path.join(os.path.dirname(args.cplus), "teacher.json")
    records = run_requests(args, settings, [  # the context of sample k is the one that the trainer draws at step k
        {"problem": problems[p], "sample": k, "traces": traces,
         "messages": distill.draw_context(contexts[traces][p], args.seed, k, p)}
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
    finish(args, settings, [(accuracy, paper.TEACHER), (counts, paper.TRACES)], out)


def update_main(args):
    """--update: the cost of the policy update in a folder (App. E.5); with --internalization also Table 32."""
    distilled = curves.read_beside(os.path.join(args.update, ""), "distill.json")
    if not distilled:
        raise data.BadInput(f"{args.update} holds no distill.json: name the --out folder of distill.py (what updates "
                            "between the steps of an exploration cost is in its --rollouts tables).")
    cplus = distilled["settings"]["cplus"]
    steps = data.read_jsonl(os.path.join(args.update, "distill.jsonl"), torn_ok=True)
    run = curves.read_run(os.path.join(os.path.dirname(cplus), "rollouts.jsonl"))
    cost = report.update_table(run, steps, distilled.get("result", {}).get("gpus", 1)), paper.UPDATE
    if not args.internalization:
        shown = show(args, [cost])
        if args.out:
            runs.write_json(args.out, shown)
        return
    settings, name, lines, problems, _ = training_run(args, cplus)
    samples = data.read_jsonl(os.path.join(args.update, "samples.jsonl"), torn_ok=True)
    last = {s["problem"]: s for s in samples if s["problem"] in lines}  # samples.jsonl is in the order of the steps
    out = args.out or os.path.join(args.update, "internalization.json")
    fresh = [{"problem": problems[p], "sample": k, "messages": lines[p][0]["opening"]}
             for p in last for k in range(1, args.samples + 1)]
    given = [{"problem": problems[p], "sample": 0, "response": s["response"], "truncated": s["truncated"]}
             for p, s in last.items()]
    records = run_requests(args, settings, fresh + given, out)
    base = measures.mean(r["correct"] for r in records if r["sample"] > 0)
    update = measures.mean(r["correct"] for r in records if r["sample"] == 0)
    step = run.curves["calls"][-1]
    rollout = measures.mean(run.attempts[p][step]["correct"] for p in last)
    shares = base, update, rollout, measures.relative_gain(base, update, rollout)
    accuracy = Table("Accuracy on the training problems without context, and with it in the rollout (Table 32)",
                     ["model", "bench", "problems", "base (%)", "update (%)", f"rollout, step {step} (%)",
                      "relative gain (%)"], [[*name, len(last), *map(percent, shares)]])
    finish(args, settings, [cost, (accuracy, paper.INTERNALIZATION)], out)


# ---------------------------------------------------------------------------------------------------------------------
# Rollouts


def rollouts_main(args):
    """--rollouts: tables and plots over runs, or one problem of them."""
    if args.show:
        print(report.show(args.rollouts + args.versus, args.show))
        return
    if args.plot and os.path.splitext(args.plot)[1] not in (".png", ".pdf", ".svg"):
        raise data.BadInput(f"--plot {args.plot} has no known ending: name a .png, .pdf or .svg file.")
    groups = report.read_groups(args.rollouts, args.versus)
    tables = report.all_tables(groups)
    if args.cplus:
        tables.append((report.correction_table(groups, distill.read_cplus(args.cplus)), paper.CORRECTION))
    shown = show(args, tables)
    if args.out:
        runs.write_json(args.out, shown)
    if args.plot:
        report.draw(args.plot, groups)


def main(argv=None):
    parser = argparse.ArgumentParser(description="Test a model; count what explore.py and distill.py wrote.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--bench", help="test on math500, lcb, mbpp, sciknoweval, arithmetic, or your own FILE.jsonl")
    what.add_argument("--rollouts", nargs="+", metavar="FILE", help="rollouts.jsonl of one method; any seeds, benches")
    what.add_argument("--teacher", action="store_true", help="test on the contexts of --cplus (Tables 5, 27, 29)")
    what.add_argument("--update", metavar="FOLDER", help="what the policy update in this folder cost")
    parser.add_argument("--out", metavar="FILE.json", help="file of the numbers (a test has a default and prints it)")
    parser.add_argument("--paper", action="store_true", help="show the paper's numbers too, for its models and benches")
    group = parser.add_argument_group("tests")
    group.add_argument("--split", choices=["test", "train"], default="test", help="train: the sets of App. E.1")
    group.add_argument("--data", help="local copy of the bench in its upstream format")
    group.add_argument("--adapter", help="folder of a LoRA adapter, such as out/adapter (with --bench)")
    group.add_argument("--samples", type=engine.positive_int, default=4, help="responses per problem")
    group.add_argument("--limit", type=engine.positive_int, help="only the first N problems")
    group.add_argument("--seed", type=engine.positive_int, default=1, help="run seed")
    group.add_argument("--traces", nargs="+", choices=["success", "failure", "random"], default=["success"],
                       help="contexts of the teacher (with --teacher)")
    group.add_argument("--internalization", action="store_true", help="test what stays without context (Table 32)")
    group = parser.add_argument_group("rollouts")
    group.add_argument("--versus", nargs="+", metavar="FILE", default=[], help="rollouts.jsonl to compare with")
    group.add_argument("--plot", metavar="FILE.png", help="draw the pass rate against calls, compute and GPU time")
    group.add_argument("--show", metavar="PROBLEM_ID", help="print one problem's attempts as a dialogue")
    group.add_argument("--cplus", metavar="FILE", help="self-correction on its problems (Table 28)")
    engine.add_arguments(parser)
    args = parser.parse_args(argv)
    if args.teacher and not args.cplus:
        parser.error("--teacher needs --cplus FILE, the cplus.jsonl of explore.py")
    for flag, mode in (("versus", "rollouts"), ("plot", "rollouts"), ("show", "rollouts"), ("adapter", "bench"),
                       ("internalization", "update")):
        if getattr(args, flag) and not getattr(args, mode):
            parser.error(f"--{flag} goes with --{mode}")
    for path in filter(None, (args.out, args.plot)):
        make_room(path)
    mode = bench_main if args.bench else teacher_main if args.teacher else update_main if args.update else rollouts_main
    mode(args)


if __name__ == "__main__":
    data.exit_with_sentence(main)
