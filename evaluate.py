"""Accuracy of a model or an adapter on a bench, and what is counted from the files of explore.py and distill.py.

    python evaluate.py --bench math500 --adapter out/adapter                                          # avg@4, pass@4 (App. E.2)
    python evaluate.py --rollouts out/rollouts.jsonl --versus random/rollouts.jsonl --plot curve.png  # App. A, C.4, D, G
    python evaluate.py --rollouts out/rollouts.jsonl --show PROBLEM_ID                                # one problem as a dialogue
    python evaluate.py --teacher --cplus out/cplus.jsonl --traces success failure random              # Tables 5, 27 and 29
    python evaluate.py --update out [--internalization]                                               # cost, E.5; Table 32

Tables are Markdown on standard output; --out keeps the same numbers as JSON (pairs are mean and deviation over seeds).
"""
import argparse
import asyncio
import dataclasses
import json
import os
import sys
import time
from collections import Counter

from tqdm import tqdm

import data
import distill
import engine
import measures
import prompts
import report
import runs
import verifiers
from report import Table, percent


# ---------------------------------------------------------------------------------------------------------------------
# Sampling and grading


async def answer(request, settings, seed, adapter, sampler, graders):
    """Sample one response to request["messages"], unless the request brings its "response", and grade it on all tests.

    request: {"problem": Problem, "sample": number from 1, "messages" or "response" and "truncated", ...}. Returns the request with
    the problem's id and the outcome, a line of the responses file.
    """
    problem = request["problem"]
    record = {**request, "problem": problem.id, "bench": problem.bench, "fault": None}
    if "messages" in request:
        prompt = sampler.encode(request["messages"])
        record |= {"prompt_tokens": len(prompt), "seed": engine.request_seed(seed, problem.id, request["sample"], "test")}
        try:
            sample = await sampler.sample(prompt, seed=record["seed"], max_tokens=settings.max_tokens, temperature=settings.temperature,
                                          top_p=settings.top_p, adapter=adapter)
        except engine.ContextTooLong as error:  # what a model cannot read, it does not solve
            tqdm.write(f"Problem {problem.id} counts as not solved: {error}", file=sys.stderr)
            return record | {"response": "", "completion_tokens": 0, "truncated": True, "correct": 0, "feedback": "", "fault": str(error)}
        record |= {"response": sample.text, "completion_tokens": len(sample.token_ids),
                   "truncated": sample.finish_reason == "length" or len(sample.token_ids) >= settings.max_tokens}
    verdict, _ = await verifiers.grade(problem, record["response"], record["truncated"], sampler, graders)
    return record | {"correct": verdict.correct, "feedback": verdict.feedback, "fault": verdict.fault}


async def answer_all(requests, settings, seed, adapter, path):
    """`answer` every request, all in flight at once: the engine batches them. Returns the records in the order of the requests.

    A line goes to the file `path` as soon as it is graded.
    """
    file = open(path, "w")
    sampler, graders = await engine.start(settings, adapters=adapter is not None), verifiers.Graders()
    begin, bar, done = time.time(), tqdm(total=len(requests), unit="answer", disable=None), Counter()

    async def one(request):
        record = await answer(request, settings, seed, adapter, sampler, graders)
        runs.append(file, record)
        done.update(answers=1, correct=record["correct"], tokens=record.get("completion_tokens", 0))
        bar.set_postfix_str(f"{done['correct'] / done['answers']:.1%} correct, {done['tokens'] / (time.time() - begin):,.0f} tokens/s")
        bar.update()
        return record

    tasks = [asyncio.ensure_future(one(request)) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:  # after an error or Ctrl-C the other requests end first, or they would find their engine gone
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        graders.close()
        sampler.close()
        bar.close()
        file.close()


def run_requests(args, settings, requests, out):
    """Answer the requests; the responses go to the .jsonl beside the file `out`. Returns (records, path of the responses)."""
    responses = os.path.splitext(out)[0] + ".jsonl"
    os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
    print(f"{engine.describe(settings)}, adapter {args.adapter or 'none'}", flush=True)
    try:
        return asyncio.run(answer_all(requests, settings, args.seed, args.adapter, responses)), responses
    except KeyboardInterrupt:
        print(f"\nStopped. What is graded stands in {responses}; the same command starts again.", file=sys.stderr)
        sys.exit(130)


def finish(args, settings, out, responses, tables, **more):
    """Print the tables and write them with all settings into the file `out`."""
    flags = ("bench", "split", "data", "adapter", "samples", "seed", "limit", "cplus", "traces", "update")
    for table in tables:
        print(table.markdown())
    runs.write_json(out, {"settings": dataclasses.asdict(settings) | {name: getattr(args, name) for name in flags}, "versions": runs.versions(),
                          "tables": [dataclasses.asdict(table) for table in tables], **more})
    print(f"\nNumbers: {out}   Responses: {responses}")


# ---------------------------------------------------------------------------------------------------------------------
# avg@k and pass@k of a model or an adapter (App. E.2)

# Tables 18 and 21, means of three seeds: avg@4 %, pass@4 %, tokens per answer, truncated %; adapter or not.
PAPER = {
    (report.QWEN, "lcb", False): (19.78, 31.55, 843, 0.00), (report.QWEN, "lcb", True): (25.45, 34.86, 1167, 0.00),
    (report.QWEN, "math500", False): (84.08, 93.53, 879, 0.12), (report.QWEN, "math500", True): (91.85, 96.20, 1864, 6.33),
    (report.QWEN, "sciknoweval", False): (74.40, 81.00, 341, 0.00), (report.QWEN, "sciknoweval", True): (76.77, 82.25, 477, 0.13),
    (report.OLMO, "lcb", False): (21.25, 29.26, 2781, 2.61), (report.OLMO, "lcb", True): (24.05, 36.13, 4264, 4.01),
    (report.OLMO, "math500", False): (89.12, 95.80, 1166, 2.95), (report.OLMO, "math500", True): (90.62, 96.13, 1401, 4.00),
    (report.OLMO, "sciknoweval", False): (69.25, 80.50, 205, 0.15), (report.OLMO, "sciknoweval", True): (74.35, 86.25, 398, 0.27),
}


def by_problem(records, key):
    """{problem id: the values of `key`, sample by sample}."""
    found = {}
    for record in records:
        found.setdefault(record["problem"], []).append(record[key])
    return found


def summary(records):
    """What App. E.2 and Table 21 report of the responses to a bench."""
    correct = by_problem(records, "correct")
    average, passed = measures.avg_and_pass(correct.values())
    return {"problems": len(correct), "avg": average, "pass": passed, "length": measures.mean(r["completion_tokens"] for r in records),
            "truncated": measures.mean(r["truncated"] for r in records), "faults": dict(Counter(r["fault"] for r in records if r["fault"]))}


def bench_main(args):
    """--bench: avg@n and pass@n."""
    settings = engine.settings(args, args.bench)
    if args.adapter:
        engine.check_adapter(args.adapter, settings.model)
    problems = data.load(args.bench, args.split, args.data, args.limit)
    name, n, begin = os.path.splitext(os.path.basename(args.bench))[0], args.samples, time.time()
    out = args.out or os.path.join("out", f"{name}-{'adapter' if args.adapter else 'base'}.json")
    records, responses = run_requests(args, settings, [{"problem": p, "sample": k, "messages": prompts.opening(p, settings.family)}
                                                       for p in problems for k in range(1, n + 1)], out)
    result = summary(records) | {"samples": n, "wall_seconds": time.time() - begin}
    rows = [[args.adapter or "base model", result["problems"], 100 * result["avg"], 100 * result["pass"], result["length"], 100 * result["truncated"],
             sum(result["faults"].values())]]
    if args.paper and args.split == "test" and (paper := PAPER.get((settings.model, args.bench, args.adapter is not None))):
        rows.append(["the paper", "", *paper, ""])
    table = Table(f"{name}, {settings.model}", ["", "problems", f"avg@{n} (%)", f"pass@{n} (%)", "tokens per answer", "truncated (%)",
                                                "verifier faults"], rows)
    finish(args, settings, out, responses, [table], result=result,
           problems={key: by_problem(records, key) for key in ("correct", "completion_tokens")})


# ---------------------------------------------------------------------------------------------------------------------
# The training problems: teacher accuracy, and what the policy keeps without context (App. G.4, G.5)


def training_run(args, cplus):
    """(engine settings, {problem id: its lines of C+}, {problem id: Problem}, rollouts) of the exploration that wrote `cplus`."""
    lines, explored = distill.read_cplus(cplus), report.read_beside(cplus, "explore.json")
    if not explored:
        raise data.BadInput(f"there is no explore.json beside {cplus}, which says what its bench is: name the cplus.jsonl in the folder of its run.")
    lines = dict(list(lines.items())[:args.limit])
    first, settings = next(iter(lines.values()))[0], explored["settings"]
    args.model, args.family = args.model or first["model"], args.family or first["family"]
    for name, value in first["decoding"].items():  # tested as it explored
        setattr(args, name, value if getattr(args, name) is None else getattr(args, name))
    problems = {p.id: p for p in data.load(settings["bench"], settings["split"], settings["data"])}
    if missing := [problem for problem in lines if problem not in problems]:
        raise data.BadInput(f"{cplus} has a problem {missing[0]} that {settings['bench']} does not have: restore the file of problems.")
    rollouts = data.read_jsonl(os.path.join(os.path.dirname(cplus), "rollouts.jsonl"), torn_ok=True)
    return engine.settings(args, first["bench"]), lines, problems, rollouts


def trace_table(lines, rollouts):
    """Table 27: how many contexts of each kind the teachers may get."""
    failure = distill.teacher_contexts(lines, "failure", rollouts)
    try:
        replaced = distill.teacher_contexts(lines, "random", rollouts)
    except data.BadInput:  # one feedback text everywhere: there are no random traces
        replaced = distill.teacher_contexts(lines, "success", rollouts)
    plain = [p for p in lines if failure[p] == [lines[p][0]["opening"]]]
    turns = {(r["problem"], r["context"][-1]["content"]) for r in rollouts if not r["restart"]}
    changed = [(p, context[-1]["content"]) for p in lines for line, context in zip(lines[p], replaced[p]) if context != line["context"]]
    pairs = sum(map(len, lines.values()))
    return Table("Contexts of the training problems (Table 27)",
                 ["problems", "successful per problem", "failure per problem", "plain prompt", "random", "from other problems", "restart"],
                 [[len(lines), pairs / len(lines), measures.mean(0 if p in plain else len(failure[p]) for p in lines), len(plain), len(changed),
                   sum(turn not in turns for turn in changed), pairs - len(changed)]])


def teacher_main(args):
    """--teacher: accuracy of the model on the contexts that its teacher is conditioned on (Tables 5 and 29)."""
    settings, lines, problems, rollouts = training_run(args, args.cplus)
    contexts = {traces: distill.teacher_contexts(lines, traces, rollouts) for traces in args.traces}
    out = args.out or os.path.join(os.path.dirname(args.cplus), "teacher.json")
    records, responses = run_requests(args, settings, [
        {"problem": problems[p], "sample": k, "traces": traces, "messages": distill.draw_context(contexts[traces][p], args.seed, k, p)}
        for traces in args.traces for p in lines for k in range(1, args.samples + 1)], out)
    rows = []
    for traces in args.traces:
        plain = {p for p in lines if contexts[traces][p] == [lines[p][0]["opening"]]}
        for name, kept in ((traces, set(lines)), (f"{traces}, without the plain prompts", set(lines) - plain)):
            if kept and (plain or name == traces):
                rows.append([name, len(kept), 100 * measures.mean(r["correct"] for r in records if r["traces"] == traces and r["problem"] in kept)])
    finish(args, settings, out, responses, [
        Table(f"Teacher accuracy, {settings.model} on {next(iter(problems.values())).bench} (Tables 5 and 29)", ["traces", "problems", "accuracy (%)"],
              rows), trace_table(lines, rollouts)])


def update_main(args):
    """--update: the cost of the policy update in a folder (App. E.5); with --internalization also Table 32."""
    distilled = report.read_beside(os.path.join(args.update, ""), "distill.json")
    if not distilled:
        raise data.BadInput(f"{args.update} holds no distill.json: name the --out folder of distill.py.")
    cplus, (samples, steps) = distilled["settings"]["cplus"], (
        data.read_jsonl(os.path.join(args.update, name), torn_ok=True) for name in ("samples.jsonl", "distill.jsonl"))
    explored = report.read_run(os.path.join(os.path.dirname(cplus), "rollouts.jsonl"), 1)
    cost = report.update_table(explored, samples, steps, (distilled.get("result") or {}).get("gpus", 1))
    if not args.internalization:
        print(cost.markdown())
        if args.out:
            runs.write_json(args.out, [dataclasses.asdict(cost)])
        return
    settings, lines, problems, rollouts = training_run(args, cplus)
    last = {s["problem"]: s for s in samples if s["problem"] in lines}  # a problem's last response: the lines are in order
    out = args.out or os.path.join(args.update, "internalization.json")
    records, responses = run_requests(args, settings, [
        *({"problem": problems[p], "sample": k, "messages": lines[p][0]["opening"]} for p in last for k in range(1, args.samples + 1)),
        *({"problem": problems[p], "sample": 0, "response": s["response"], "truncated": s["truncated"]} for p, s in last.items())], out)
    base, update = (measures.mean(r["correct"] for r in records if (r["sample"] == 0) == offline) for offline in (False, True))
    final = max(r["step"] for r in rollouts)
    rollout = measures.mean(r["correct"] for r in rollouts if r["step"] == final and r["problem"] in last)
    finish(args, settings, out, responses, [cost, Table(
        f"Accuracy on the training problems, {settings.model} on {explored.bench} (Table 32)",
        ["problems", "base (%)", "update (%)", f"rollout, step {final} (%)", "relative gain (%)"],
        [[len(last), 100 * base, 100 * update, 100 * rollout, percent(measures.relative_gain(base, update, rollout))]])])


# ---------------------------------------------------------------------------------------------------------------------
# Command line


def rollouts_main(args):
    """--rollouts: tables and plots over runs, or one problem of them."""
    if args.show:
        print(report.show(args.rollouts + args.versus, args.show))
        return
    groups = [report.read_group(paths) for paths in (args.rollouts, args.versus) if paths]
    if len({group.method for group in groups}) < len(groups):  # two runs of one method: their folders tell them apart
        for group, paths in zip(groups, (args.rollouts, args.versus)):
            group.method += f" ({os.path.dirname(paths[0]) or '.'})"
    tables = report.all_tables(groups, args.paper)
    if args.cplus:
        tables.append(report.correction_table(groups, distill.read_cplus(args.cplus)))
    for table in tables:
        print(table.markdown())
    if args.out:
        runs.write_json(args.out, [dataclasses.asdict(table) for table in tables])
    if args.plot:
        report.draw(args.plot, groups)


def main(argv=None):
    parser = argparse.ArgumentParser(description="avg@k and pass@k of a model or an adapter; what the files of explore.py and distill.py say.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--bench", help="math500, lcb, mbpp, sciknoweval, arithmetic, or a FILE.jsonl of your own: test a model")
    what.add_argument("--rollouts", nargs="+", metavar="FILE", help="rollouts.jsonl of one method, of several seeds or benches: count")
    what.add_argument("--teacher", action="store_true", help="test the model on the contexts of --cplus (Tables 5, 27, 29)")
    what.add_argument("--update", metavar="FOLDER", help="--out of distill.py: what the policy update cost")
    parser.add_argument("--out", metavar="FILE.json", help="the numbers (default with --bench: out/BENCH-base.json or -adapter.json)")
    parser.add_argument("--paper", action="store_true", help="the paper's own numbers beside those of its models and benches")
    group = parser.add_argument_group("where a model is tested")
    group.add_argument("--split", choices=["test", "train"], default="test")
    group.add_argument("--data", help="local copy of the bench in its upstream format")
    group.add_argument("--adapter", help="folder of a LoRA adapter, such as out/adapter (with --bench)")
    group.add_argument("--samples", type=engine.positive_int, default=4, help="responses per problem")
    group.add_argument("--limit", type=engine.positive_int, help="only the first N problems")
    group.add_argument("--seed", type=engine.positive_int, default=1, help="run seed")
    group.add_argument("--traces", nargs="+", choices=["success", "failure", "random"], default=["success"], help="with --teacher")
    group.add_argument("--internalization", action="store_true", help="with --update: base model, last student responses, rollout (Table 32)")
    group = parser.add_argument_group("with --rollouts")
    group.add_argument("--versus", nargs="+", metavar="FILE", default=[], help="rollouts.jsonl of the method to compare with")
    group.add_argument("--plot", metavar="FILE.png", help="draw the pass rate against calls, compute and GPU time")
    group.add_argument("--show", metavar="PROBLEM_ID", help="print one problem's attempts as a dialogue")
    group.add_argument("--cplus", metavar="FILE", help="self-correction on its problems (Table 28); with --teacher: its contexts")
    engine.add_arguments(parser)
    args = parser.parse_args(argv)
    if args.teacher and not args.cplus:
        parser.error("--teacher needs --cplus FILE, the cplus.jsonl of explore.py")
    for flag, mode in (("versus", "rollouts"), ("plot", "rollouts"), ("show", "rollouts"), ("adapter", "bench"), ("internalization", "update")):
        if getattr(args, flag) and not getattr(args, mode):
            parser.error(f"--{flag} goes with --{mode}")
    (bench_main if args.bench else teacher_main if args.teacher else update_main if args.update else rollouts_main)(args)


if __name__ == "__main__":
    data.exit_with_sentence(main)
