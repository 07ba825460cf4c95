"""Accuracy of a model or an adapter on a bench, and what is counted from the rollouts of an exploration.

    python evaluate.py --bench math500 --adapter out/adapter                                          # avg@4, pass@4 (App. E.2)
    python evaluate.py --rollouts out/rollouts.jsonl --versus random/rollouts.jsonl --plot curve.png  # App. A, C.4, D, G
    python evaluate.py --rollouts out/rollouts.jsonl --show PROBLEM_ID                                # one problem as a dialogue

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
import engine
import measures
import prompts
import report
import runs
import verifiers
from report import Table


# ---------------------------------------------------------------------------------------------------------------------
# Sampling and grading


async def answer(problem, messages, number, settings, seed, adapter, sampler, graders):
    """Sample one response to `messages` and grade it on all tests; a line of the responses file."""
    prompt = sampler.encode(messages)
    record = {"problem": problem.id, "bench": problem.bench, "sample": number, "messages": messages, "prompt_tokens": len(prompt),
              "seed": engine.request_seed(seed, problem.id, number, "test")}
    try:
        sample = await sampler.sample(prompt, seed=record["seed"], max_tokens=settings.max_tokens, temperature=settings.temperature,
                                      top_p=settings.top_p, adapter=adapter)
    except engine.ContextTooLong as error:  # what a model cannot read, it does not solve
        tqdm.write(f"Problem {problem.id} counts as not solved: {error}", file=sys.stderr)
        return record | {"response": "", "completion_tokens": 0, "truncated": True, "correct": 0, "feedback": "", "fault": str(error)}
    truncated = sample.finish_reason == "length" or len(sample.token_ids) >= settings.max_tokens
    verdict, _ = await verifiers.grade(problem, sample.text, truncated, sampler, graders)
    return record | {"response": sample.text, "completion_tokens": len(sample.token_ids), "truncated": truncated,
                     "correct": verdict.correct, "feedback": verdict.feedback, "fault": verdict.fault}


async def answer_all(requests, settings, seed, adapter, path):
    """Answer and grade requests (problem, messages, sample number), all in flight at once: the engine batches them.

    A line goes to the file `path` as soon as it is graded. Returns the records in the order of the requests.
    """
    file = open(path, "w")
    sampler, graders = await engine.start(settings, adapters=adapter is not None), verifiers.Graders()
    begin, bar, done = time.time(), tqdm(total=len(requests), unit="answer", disable=None), Counter()

    async def one(request):
        record = await answer(*request, settings, seed, adapter, sampler, graders)
        file.write(json.dumps(record) + "\n")
        file.flush()
        done.update(answers=1, correct=record["correct"], tokens=record["completion_tokens"])
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
    name = os.path.splitext(os.path.basename(args.bench))[0]
    out = args.out or os.path.join("out", f"{name}-{'adapter' if args.adapter else 'base'}.json")
    responses = os.path.splitext(out)[0] + ".jsonl"
    os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
    print(f"{engine.describe(settings)}, adapter {args.adapter or 'none'}", flush=True)
    requests = [(p, prompts.opening(p, settings.family), n) for p in problems for n in range(1, args.samples + 1)]
    begin = time.time()
    records = asyncio.run(answer_all(requests, settings, args.seed, args.adapter, responses))
    result = summary(records) | {"samples": args.samples, "wall_seconds": time.time() - begin}
    runs.write_json(out, {"settings": dataclasses.asdict(settings) | {k: getattr(args, k) for k in (
                         "bench", "split", "data", "adapter", "samples", "seed", "limit")},
                     "versions": runs.versions(), "result": result,
                     "problems": {"correct": by_problem(records, "correct"), "completion_tokens": by_problem(records, "completion_tokens")}})
    rows = [[args.adapter or "base model", result["problems"], 100 * result["avg"], 100 * result["pass"], result["length"], 100 * result["truncated"],
             sum(result["faults"].values())]]
    if args.paper and args.split == "test" and (paper := PAPER.get((settings.model, args.bench, args.adapter is not None))):
        rows.append(["the paper", "", *paper, ""])
    print(Table(f"{name}, {settings.model}", ["", "problems", f"avg@{args.samples} (%)", f"pass@{args.samples} (%)", "tokens per answer",
                                                    "truncated (%)", "verifier faults"], rows).markdown())
    print(f"\nNumbers: {out}   Responses: {responses}")


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
    for table in tables:
        print(table.markdown())
    if args.out:
        runs.write_json(args.out, [dataclasses.asdict(table) for table in tables])
    if args.plot:
        report.draw(args.plot, groups)


def main(argv=None):
    parser = argparse.ArgumentParser(description="avg@k and pass@k of a model or an adapter; tables and plots of rollouts.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--bench", help="math500, lcb, mbpp, sciknoweval, arithmetic, or a FILE.jsonl of your own: test a model")
    what.add_argument("--rollouts", nargs="+", metavar="FILE", help="rollouts.jsonl of one method, of several seeds or benches: count")
    parser.add_argument("--out", metavar="FILE.json", help="the numbers (default with --bench: out/BENCH-base.json or -adapter.json)")
    parser.add_argument("--paper", action="store_true", help="the paper's own numbers beside those of its models and benches")
    group = parser.add_argument_group("with --bench")
    group.add_argument("--split", choices=["test", "train"], default="test")
    group.add_argument("--data", help="local copy of the bench in its upstream format")
    group.add_argument("--adapter", help="folder of a LoRA adapter, such as out/adapter")
    group.add_argument("--samples", type=engine.positive_int, default=4, help="responses per problem")
    group.add_argument("--limit", type=engine.positive_int, help="only the first N problems")
    group.add_argument("--seed", type=engine.positive_int, default=1, help="run seed")
    group = parser.add_argument_group("with --rollouts")
    group.add_argument("--versus", nargs="+", metavar="FILE", default=[], help="rollouts.jsonl of the method to compare with")
    group.add_argument("--plot", metavar="FILE.png", help="draw the pass rate against calls, compute and GPU time")
    group.add_argument("--show", metavar="PROBLEM_ID", help="print one problem's attempts as a dialogue")
    engine.add_arguments(parser)
    args = parser.parse_args(argv)
    try:
        bench_main(args) if args.bench else rollouts_main(args)
    except KeyboardInterrupt:
        print("\nStopped. Responses graded so far stay in the .jsonl file beside --out; the same command starts again.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    data.exit_with_sentence(main)
