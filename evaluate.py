"""Accuracy of a model or an adapter on a bench, and what is counted from the files of a run.

    python evaluate.py --bench math500 --adapter out/adapter             # avg@4, pass@4 (App. E.2)
    python evaluate.py --test a.json --versus b.json                     # of two tests
    python evaluate.py --rollouts out/rollouts.jsonl \\
        --versus random/rollouts.jsonl --plot curve.png                  # App. A, C.4, D
    python evaluate.py --rollouts out/rollouts.jsonl --show PROBLEM_ID   # one problem as a dialogue
    python evaluate.py --teacher --cplus out/cplus.jsonl \\
        --traces success failure random                                  # Tables 5, 27 and 29
    python evaluate.py --update out [--internalization]                  # cost (App. E.5); Table 32
    python evaluate.py --rollouts out/rollouts.jsonl --html run.html     # a page to look at
    python evaluate.py --tokens out --html tokens.html                   # Eq. 2, token by token
    python evaluate.py --tables runs/                                    # all finished runs

Tables are Markdown on standard output; --out keeps the same numbers as JSON (pairs are mean and
deviation over seeds). What needs no model is in report/. A test that was stopped goes on with the
same command.
"""
import asyncio
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, fields
from functools import partial

from tqdm import tqdm

import engines
import benches
import prompts
import report
import verifiers
from common import journal, outputs, rollouts
from common.errors import BadInput, ContextTooLong, exit_with_sentence
from common.flags import Parser, cap, positive_int
from common.progress import new_bar
from common.updates import read_cplus
from engines.base import check_adapter, request_seed, side_by_side
from report import paper, suite, tests, tokens
from report.training import engine_settings, read_training

# --------------------------------------------------------------------------------------------------
# Sampling and grading


async def answer(request, options, settings, engine, graders):
    """Sample one response to request["messages"] and grade it on all tests.

    request: {"problem": Problem, "sample": number from 1, "messages", ...}; one that brings its
    "response" and "truncated" instead of "messages" is graded only. Returns it with the problem's
    id instead of the problem, and the outcome: a line of the responses file.
    """
    problem = request["problem"]
    record = request | {"problem": problem.id, "bench": problem.bench}
    if "messages" in request:
        prompt = engine.encode(request["messages"])
        record["seed"] = request_seed(options.seed, problem.id, request["sample"], "test")
        record["prompt_tokens"] = len(prompt)
        try:
            completion = await engine.sample(
                prompt, seed=record["seed"], max_tokens=settings.max_tokens,
                temperature=settings.temperature, top_p=settings.top_p, adapter=options.adapter)
        except ContextTooLong as error:
            return unsolved(record, error)
        record["completion_tokens"] = len(completion.token_ids)
        record["response"] = completion.text
        record["truncated"] = completion.truncated(settings.max_tokens)
    verdict, judgment = await verifiers.grade(
        problem, record["response"], record["truncated"], engine, graders)
    return record | {"correct": verdict.correct, "feedback": verdict.feedback,
                     "fault": verdict.fault, **verifiers.judge_record(judgment)}


def unsolved(record, error):
    """The line of a request that is too long: what a model cannot read, it does not solve."""
    tqdm.write(f"Problem {record['problem']} counts as not solved: {error} A larger "
               "--max-model-len or another model may hold it.", file=sys.stderr)
    return record | {"completion_tokens": 0, "response": "", "truncated": True, "correct": 0,
                     "feedback": "", "fault": str(error), **verifiers.judge_record(None)}


class Progress:
    """A bar with the average so far, tokens per second and the time left."""

    def __init__(self, total):
        self.bar = new_bar(total, "answer")
        self.begin = time.time()
        self.tokens = 0
        self.graded, self.correct = Counter(), Counter()

    def add(self, record):
        # the traces of --teacher one by one; --internalization grades the update's responses too
        name = record.get("traces") or ("update" if record["sample"] == 0 else "avg")
        self.graded[name] += 1
        self.correct[name] += record["correct"]
        self.tokens += record.get("completion_tokens", 0)
        self.bar.set_postfix_str(self.text(time.time() - self.begin))
        self.bar.update()

    def text(self, seconds):
        """The averages so far and the speed."""
        parts = [f"{name} {self.correct[name] / self.graded[name]:.1%}" for name in self.graded]
        return ", ".join([*parts, f"{self.tokens / seconds:,.0f} tokens/s"])

    def close(self):
        self.bar.close()


async def answer_all(requests, options, settings, file, earlier_seconds):
    """`answer` every request, all in flight at once: the engine batches them.

    -> records, in the order of the requests. A line goes to `file` as soon as it is graded.
    """
    begin, records = time.time(), {}
    folder = os.path.dirname(file.name) or "."
    engine = await engines.start(settings, adapters=options.adapter is not None, folder=folder)
    graders = verifiers.Graders(strict=options.strict_math_verify)
    progress = Progress(len(requests))

    async def one(i, request):
        record = await answer(request, options, settings, engine, graders)
        record["elapsed_seconds"] = round(earlier_seconds + time.time() - begin, 3)
        journal.append(file, record)
        records[i] = record
        progress.add(record)

    try:
        await side_by_side(one(i, request) for i, request in enumerate(requests))
        return [records[i] for i in range(len(requests))]
    finally:
        graders.close()
        engine.close()
        progress.close()


# --------------------------------------------------------------------------------------------------
# The files of a test


def check_outputs(options, out):
    """BadInput where --out (`out`), --plot or --html would write over something else."""
    inputs = [options.bench, options.data, options.adapter, options.update, options.cplus,
              options.tokens,
              options.engine_flags["model"], *(options.rollouts or []), *options.versus]
    if options.test:
        inputs.append(options.test)
    is_sampling = options.bench or options.teacher or options.internalization
    if out:
        is_own = outputs.is_test if is_sampling else outputs.is_tables
        outputs.claim_file("--out", out, (".json",), inputs, is_own)
    if out and is_sampling:
        responses = report.responses_path(out)
        outputs.claim("--out", [responses], inputs, outputs.holds_answers)
    if options.plot:
        endings = (".png", ".pdf", ".svg")
        outputs.claim_file("--plot", options.plot, endings, inputs, outputs.is_marked)
    if options.html:
        outputs.claim_file("--html", options.html, (".html",), inputs, outputs.is_marked)


def place(problem, record):
    """What tells a request, or its record, from all others of a test."""
    return problem, record["sample"], record.get("traces")


def run_requests(options, settings, requests, out):
    """-> records, in the order of the requests: those of earlier sessions of the test, and new.

    They go to the .jsonl beside the file `out`. Errors: BadInput, if another test is there.
    """
    if not options.out:
        check_outputs(options, out)
    folder, name = os.path.split(out)
    print(f"{engines.describe(settings)}, adapter {options.adapter or 'none'}", flush=True)
    with journal.lock(folder or ".", f".{name}.lock"):
        report.begin_test(options, settings, requests, out)
        lines, file = journal.open_journal(report.responses_path(out))
        records = {place(line["problem"], line): line for line in lines}
        places = [place(request["problem"].id, request) for request in requests]
        missing = [request for request, at in zip(requests, places) if at not in records]
        if records:
            going_on = "; the test goes on" if missing else ""
            print(f"{len(requests) - len(missing)} of {len(requests)} answers are there already"
                  f"{going_on}.", flush=True)
        seconds = max((line.get("elapsed_seconds", 0) for line in lines), default=0)
        stopped = f"Stopped. Every graded answer is in {file.name}; the same command goes on."
        with file, journal.synced(file), journal.stoppable(stopped):
            if missing:
                work = answer_all(missing, options, settings, file, seconds)
                new = asyncio.run(work)
                records |= {place(record["problem"], record): record for record in new}
    records = [records[at] for at in places]
    for line in rollouts.fault_lines(records):
        print(line)
    return records


# --------------------------------------------------------------------------------------------------
# avg@k and pass@k of a model or an adapter (App. E.2)


def bench_main(options):
    """--bench: avg@k and pass@k, k = --samples."""
    flags = options.engine_flags
    if options.adapter:
        flags = engines.as_run(flags, engines.adapter_run(options.adapter), options.adapter)
    settings = engine_settings(flags, options.bench, options.adapter)
    if options.adapter:
        check_adapter(options.adapter, settings.model)
    problems = benches.load(options.bench, options.split, options.data, options.limit)
    requests = []
    for problem in problems:
        for k in range(1, options.samples + 1):
            plain = prompts.opening(problem, settings.family)
            requests.append({"problem": problem, "sample": k, "messages": plain})
    out = options.out or tests.default_out(options, settings)
    records = run_requests(options, settings, requests, out)
    correct = report.values_by_problem(records, "correct")
    lengths = report.values_by_problem(records, "completion_tokens")
    seconds = [record["elapsed_seconds"] for record in records if "elapsed_seconds" in record]
    result = tests.test_result(records, correct, options.samples)
    result["wall_seconds"] = max(seconds, default=None)
    table = tests.test_table(report.test_settings(options, settings), result)
    report.finish(options, [(table, paper.TESTS)], out, result=result,
                  problems={"correct": correct, "completion_tokens": lengths})
    print(tests.interval_line(result))


# --------------------------------------------------------------------------------------------------
# Command line


@dataclass(frozen=True)
class Options:
    """The command line. One of add_modes' is given."""
    bench: str | None
    rollouts: list | None
    teacher: bool
    update: str | None
    test: str | None
    out: str | None
    paper: bool
    split: str
    data: str | None
    adapter: str | None
    samples: int
    limit: int | None
    seed: int
    strict_math_verify: bool
    traces: list
    internalization: bool
    versus: list
    plot: str | None
    show: str | None
    cplus: str | None
    tokens: str | None
    tables: str | None
    problem: str | None
    tau: float | None
    html: str | None
    engine_flags: dict     # those of engines.add_arguments: None where they are silent


def parse(argv=None):
    """-> Options; a wrong flag ends the program with argparse's sentence and status 2."""
    parser = Parser(
        description="Test a model; count what explore.py and distill.py wrote.")
    add_modes(parser)
    add_test_flags(parser.add_argument_group("tests"))
    add_rollout_flags(parser.add_argument_group("rollouts"))
    add_token_flags(parser.add_argument_group("tokens"))
    engines.add_arguments(parser)
    flags = vars(parser.parse_args(argv))
    if flags["teacher"] and not flags["cplus"]:
        parser.error("--teacher needs --cplus FILE, the cplus.jsonl of explore.py")
    if flags["test"] and not flags["versus"]:
        parser.error("--test needs --versus FILE, the .json of another test")
    if flags["versus"] and not (flags["rollouts"] or flags["test"]):
        parser.error("--versus goes with --rollouts or --test")
    if flags["html"] and not (flags["rollouts"] or flags["tokens"]):
        parser.error("--html goes with --rollouts or --tokens")
    if flags["tokens"] and not flags["html"]:
        parser.error("--tokens needs --html FILE.html, the page to write")
    pairs = {"plot": "rollouts", "show": "rollouts", "adapter": "bench",
             "internalization": "update", "problem": "tokens", "tau": "tokens"}
    for flag, mode in pairs.items():
        if flags[flag] and not flags[mode]:
            parser.error(f"--{flag} goes with --{mode}")
    own = {field.name: flags.pop(field.name) for field in fields(Options) if field.name in flags}
    return Options(**own, engine_flags=flags)


def add_modes(parser):
    add = parser.add_mutually_exclusive_group(required=True).add_argument
    add("--bench",
        help="test on math500, lcb, mbpp, sciknoweval, arithmetic, or your own FILE.jsonl")
    add("--rollouts", nargs="+", metavar="FILE",
        help="rollouts.jsonl of one method; any seeds, benches")
    add("--teacher", action="store_true",
        help="test on the contexts of --cplus (Tables 5, 27, 29)")
    add("--update", metavar="FOLDER", help="what the policy update in this folder cost")
    add("--test", metavar="FILE", help="the .json of a test, to compare --versus others")
    add("--tokens", metavar="FOLDER", help="what the context taught in this update: see --html")
    add("--tables", metavar="FOLDER",
        help="the paper's tables of all finished runs and tests in this folder (default: none)")
    add = parser.add_argument
    add("--html", metavar="FILE.html",
        help="write --rollouts (the attempts) or --tokens (Eq. 2 token by token) as a page "
             "(default: none)")
    add("--out", metavar="FILE.json",
        help="file of the numbers (default: none; of a test, out/BENCH-MODEL-POLICY-DECODING.json "
             "or beside the run; of --tables, tables.json in its folder)")
    add("--paper", action="store_true",
        help="show the paper's numbers too, for its models and benches")


def add_test_flags(group):
    add, positive = group.add_argument, positive_int
    add("--split", choices=["test", "train"], default="test", help="train: the sets of App. E.1")
    add("--data", 
        help="local copy of the bench in its upstream format (default: fetched)")
    add("--adapter",
        help="folder of a LoRA adapter, such as out/adapter, with --bench (default: none); model, "
             "family and decoding are by default those of its run")
    add("--samples", type=positive, default=4, help="responses per problem")
    add("--limit", type=positive, help="only the first N problems (default: all)")
    add("--seed", type=positive, default=1, help="run seed")
    verifiers.add_arguments(group)
    add("--traces", nargs="+", choices=["success", "failure", "random"], default=["success"],
        help="contexts of the teacher (with --teacher)")
    add("--internalization", action="store_true", help="test what stays without context (Table 32)")


def add_rollout_flags(group):
    add = group.add_argument
    add("--versus", nargs="+", metavar="FILE", default=[],
        help="what to compare with: rollouts.jsonl, or the .json of tests (default: nothing)")
    add("--plot", metavar="FILE.png",
        help="draw the pass rate against calls, compute and GPU time (default: no plot)")
    add("--show", metavar="PROBLEM_ID",
        help="print one problem's attempts as a dialogue (default: tables of all)")
    add("--cplus", metavar="FILE",
        help="self-correction on its problems (Table 28; default: none)")


def add_token_flags(group):
    group.add_argument("--problem", metavar="ID", help="only this problem (default: all of step 1)")
    group.add_argument("--tau", type=cap, help="another cap (default: the run's)")


def main(argv=None):
    options = parse(argv)
    out = options.out or options.tables and os.path.join(options.tables, "tables.json")
    if options.tables and not os.path.isdir(options.tables):
        raise BadInput(f"--tables {options.tables} is no folder: name one that holds runs.")
    check_outputs(options, out)
    sample = partial(run_requests, options)
    if options.bench:
        bench_main(options)
    elif options.teacher:
        report.teacher_main(options, read_training(options, options.cplus), sample)
    elif options.test:
        tests.versus_main(options)
    elif options.update:
        report.update_main(options, partial(read_training, options), sample)
    elif options.tokens:
        print(tokens.write_page(options.html, options.tokens, options.problem, options.limit,
                                options.tau))
    elif options.tables:
        suite.main(options.tables, out, options.paper)
    elif options.cplus:
        report.rollouts_main(options, read_cplus(options.cplus))
    else:
        report.rollouts_main(options, None)


if __name__ == "__main__":
    exit_with_sentence(main)
