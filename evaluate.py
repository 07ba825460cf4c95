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
import os
import sys
import time
from collections import Counter

import engines
import ablations
import benches
import distill
import prompts
import report
import verifiers
from common import journal
from common.errors import BadInput, ContextTooLong, exit_with_sentence
from engines.base import check_adapter, request_seed, side_by_side
from report import curves, measures, paper
from report.curves import bench_name, model_name
from report.tables import Table

from tqdm import tqdm


# ---------------------------------------------------------------------------------------------------------------------
# Sampling and grading


async def answer(request, settings, seed, adapter, engine, graders):
    """Sample one response to request["messages"], unless the request brings its "response"; grade it on all tests.

    request: {"problem": Problem, "sample": number from 1, "messages" (or "response" and "truncated"), ...}. Returns it
    with the problem's id instead of the problem, and the outcome: a line of the responses file.
    """
    problem = request["problem"]
    record = request | {"problem": problem.id, "bench": problem.bench}
    if "messages" in request:
        prompt = engine.encode(request["messages"])
        record["seed"] = request_seed(seed, problem.id, request["sample"], "test")
        try:
            sample = await engine.sample(prompt, seed=record["seed"], max_tokens=settings.max_tokens, adapter=adapter,
                                          temperature=settings.temperature, top_p=settings.top_p)
        except ContextTooLong as error:  # what a model cannot read, it does not solve
            tqdm.write(f"Problem {problem.id} counts as not solved: {error}", file=sys.stderr)
            return record | {"prompt_tokens": len(prompt), "completion_tokens": 0, "response": "", "truncated": True,
                             "correct": 0, "feedback": "", "fault": str(error)}
        record |= {"prompt_tokens": len(prompt), "completion_tokens": len(sample.token_ids), "response": sample.text,
                   "truncated": sample.truncated(settings.max_tokens)}
    verdict, _ = await verifiers.grade(problem, record["response"], record["truncated"], engine, graders)
    return record | {"correct": verdict.correct, "feedback": verdict.feedback, "fault": verdict.fault}


async def answer_all(requests, settings, seed, adapter, path):
    """`answer` every request, all in flight at once: the engine batches them. -> records in the order of the requests.

    A line goes to the file `path` as soon as it is graded.
    """
    file = open(path, "w")
    engine = await engines.start(settings, adapters=adapter is not None, folder=os.path.dirname(path) or ".")
    graders = verifiers.Graders()
    begin, bar, done = time.time(), tqdm(total=len(requests), unit="answer", disable=None), Counter()
    records = [None] * len(requests)

    async def one(i, request):
        records[i] = record = await answer(request, settings, seed, adapter, engine, graders)
        journal.append(file, record)
        done.update(answers=1, correct=record["correct"], tokens=record.get("completion_tokens", 0))
        speed = done["tokens"] / (time.time() - begin)
        bar.set_postfix_str(f"{done['correct'] / done['answers']:.1%} correct, {speed:,.0f} tokens/s")
        bar.update()

    try:
        await side_by_side(one(i, request) for i, request in enumerate(requests))
        return records
    finally:
        graders.close()
        engine.close()
        bar.close()
        file.close()


def make_room(path):
    """Make the folder that the file `path` will stand in; BadInput if that cannot be."""
    folder = os.path.dirname(path) or "."
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise BadInput(f"the folder of {path} cannot be made ({error.strerror}): name another file.") from None
    if os.path.isdir(path) or not os.access(folder, os.W_OK):
        raise BadInput(f"{path} cannot be written: name a file in a folder of yours.")


def run_requests(args, settings, requests, out):
    """-> records. The responses go to the .jsonl beside the file `out`."""
    make_room(out)
    print(f"{engines.describe(settings)}, adapter {args.adapter or 'none'}", flush=True)
    path = report.responses_path(out)
    with journal.stoppable(f"Stopped. What is graded stands in {path}; the same command starts again."):
        return asyncio.run(answer_all(requests, settings, args.seed, args.adapter, path))


# ---------------------------------------------------------------------------------------------------------------------
# avg@k and pass@k of a model or an adapter (App. E.2)


def bench_main(args):
    """--bench: avg@n and pass@n."""
    settings = engines.settings(args, args.bench)
    if args.adapter:
        check_adapter(args.adapter, settings.model)
    problems = benches.load(args.bench, args.split, args.data, args.limit)
    name, n = os.path.splitext(os.path.basename(args.bench))[0], args.samples
    out = args.out or os.path.join("out", f"{name}-{'adapter' if args.adapter else 'base'}.json")
    begin = time.time()
    records = run_requests(args, settings, [
        {"problem": problem, "sample": k, "messages": prompts.opening(problem, settings.family)}
        for problem in problems for k in range(1, n + 1)], out)
    correct = report.values_by_problem(records, "correct")
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
    report.finish(args, settings, [(table, paper.TESTS)], out, result=result,
           problems={"correct": correct, "completion_tokens": report.values_by_problem(records, "completion_tokens")})


# ---------------------------------------------------------------------------------------------------------------------
# The training problems: teacher accuracy, and what the policy keeps without context (App. G.4, G.5)


class Training:
    """The training problems of the run that wrote `cplus`."""

    def __init__(self, args, cplus):
        lines, explored = distill.read_cplus(cplus), curves.read_beside(cplus, "explore.json")
        if not explored:
            raise BadInput(f"there is no explore.json beside {cplus} to say what its bench is: name the cplus.jsonl "
                           "in the folder of its run.")
        self.lines, bench = dict(list(lines.items())[:args.limit]), explored["settings"]
        first = next(iter(self.lines.values()))[0]
        distill.as_explored(args, first)
        self.problems = {p.id: p for p in benches.load(bench["bench"], bench["split"], args.data or bench["data"])}
        if missing := [problem for problem in self.lines if problem not in self.problems]:
            raise BadInput(f"{bench['bench']} has no problem {missing[0]}, which {cplus} names: restore the file of "
                           "problems.")
        self.name = [model_name(args.model), bench_name(first["bench"], bench["split"])]
        self.settings, self.rollouts = engines.settings(args, first["bench"]), ablations.read_rollouts(cplus)
        self.draw = distill.draw_context  # the context of sample k is the one that the trainer draws at step k

    def contexts(self, traces):
        """{problem id: the contexts that its teacher is conditioned on}."""
        return ablations.teacher_contexts(self.lines, traces, self.rollouts)


# ---------------------------------------------------------------------------------------------------------------------
# Command line


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
    group.add_argument("--samples", type=engines.positive_int, default=4, help="responses per problem")
    group.add_argument("--limit", type=engines.positive_int, help="only the first N problems")
    group.add_argument("--seed", type=engines.positive_int, default=1, help="run seed")
    group.add_argument("--traces", nargs="+", choices=["success", "failure", "random"], default=["success"],
                       help="contexts of the teacher (with --teacher)")
    group.add_argument("--internalization", action="store_true", help="test what stays without context (Table 32)")
    group = parser.add_argument_group("rollouts")
    group.add_argument("--versus", nargs="+", metavar="FILE", default=[], help="rollouts.jsonl to compare with")
    group.add_argument("--plot", metavar="FILE.png", help="draw the pass rate against calls, compute and GPU time")
    group.add_argument("--show", metavar="PROBLEM_ID", help="print one problem's attempts as a dialogue")
    group.add_argument("--cplus", metavar="FILE", help="self-correction on its problems (Table 28)")
    engines.add_arguments(parser)
    args = parser.parse_args(argv)
    if args.teacher and not args.cplus:
        parser.error("--teacher needs --cplus FILE, the cplus.jsonl of explore.py")
    for flag, mode in (("versus", "rollouts"), ("plot", "rollouts"), ("show", "rollouts"), ("adapter", "bench"),
                       ("internalization", "update")):
        if getattr(args, flag) and not getattr(args, mode):
            parser.error(f"--{flag} goes with --{mode}")
    for path in filter(None, (args.out, args.plot)):
        make_room(path)
    if args.bench:
        bench_main(args)
    elif args.teacher:
        report.teacher_main(args, Training, run_requests)
    elif args.update:
        report.update_main(args, Training, run_requests)
    else:
        report.rollouts_main(args, distill.read_cplus(args.cplus) if args.cplus else None)


if __name__ == "__main__":
    exit_with_sentence(main)
