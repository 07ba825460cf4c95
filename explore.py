"""Exploration with a per-problem memory: Algorithm 1, lines 1-12 (section 2.2, App. B.1, B.2).

    python explore.py --bench math500                  # LEAF, K = 24 verifier calls a problem
    python explore.py --bench math500 --method random  # the baseline: one answer a call, no memory

The memory of a problem is reset at every restart, so with fixed parameters the segments between
restarts do not depend on one another: they run at the same time, each a coroutine of its own, and
no step waits for another problem or segment. This changes neither the distribution of the answers
nor pass@k, only the order in which they are finished.

Writes rollouts.jsonl (one line per verifier call, as soon as it is graded), cplus.jsonl (C+, what
distill.py reads) and explore.json into --out. The same command goes on where a run stopped; larger
--calls or --limit extend it.
"""
import asyncio
import dataclasses
import functools
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import engines
import ablations
import benches
import prompts
import verifiers
from common import flags, journal, outputs, progress, rollouts
from common.clock import Clock
from common.errors import BadInput, ContextTooLong, exit_with_sentence
from engines.base import request_seed, side_by_side
from report import measures

from tqdm import tqdm
if TYPE_CHECKING:
    import policy  # which loads torch: --help and a mistyped flag do without


# --------------------------------------------------------------------------------------------------
# Algorithm 1


async def explore_segment(run, x, steps):
    """Lines 4-12 for problem x, from one restart to the next. Errors: ContextTooLong."""
    family, L, tokenizer = run.settings.family, run.args.tail, run.engine.tokenizer
    m = None                                                   # memory: (y_hat, r, f)
    for t in steps:                                            # line 4
        if (x.id, t) in run.records:
            # An earlier session of this run has graded the step: remember its answer, go on.
            m = run.memory(x, t)
            continue
        attempt = run.attempt(x, t)
        if m is None:                                          # line 5
            # A fresh draft: earlier attempts can hold the model on one line of solution.
            draft = await attempt.sample("draft", prompts.opening(x, family))  # line 6
            # Revised blindly: grading the draft would cost one of the K calls, so no r and f.
            c = prompts.restart(x, family, tail(draft, L, tokenizer))          # line 7
        else:                                                  # line 8
            # Only the last answer: it has revised those before it already (section 3.3.1).
            y_hat, r, f = m                                    # line 9
            c = prompts.carry(x, family, y_hat, r, f)          # line 10
        y = await attempt.sample("answer", c)                  # line 11: y ~ policy(. | c)
        r, f = await attempt.verify(y)                         # line 11
        y_hat = tail(y, L, tokenizer)                          # what line 9 takes out next time
        m = y_hat, r, f
        run.keep(x, rollouts.record(attempt, c, y_hat))        # for line 12: see `cplus`


async def random_segment(run, x, steps):
    """The baseline, independent sampling: every answer is given to the plain prompt."""
    for t in steps:
        if (x.id, t) not in run.records:
            attempt = run.attempt(x, t)
            c = prompts.opening(x, run.settings.family)
            y = await attempt.sample("answer", c)
            await attempt.verify(y)
            y_hat = tail(y, run.args.tail, run.engine.tokenizer)
            run.keep(x, rollouts.record(attempt, c, y_hat))


def tail(y, L, tokenizer):
    """tail_L: the text of the last L tokens of a longer response; a shorter one as it is."""
    if len(y.token_ids) <= L:
        return y.text
    # The end and not the beginning: the result, the code or the conclusion stands there.
    return tokenizer.decode(y.token_ids[-L:], skip_special_tokens=True)


def segments(K, M):
    """The steps 1..K (line 4), cut where line 5 restarts: [1..M], [M+1..2M], ..."""
    return [range(first, min(first + M, K + 1)) for first in range(1, K + 1, M)]


def cplus(records):
    """C+ of `records`, which are in order of problem and step (lines 3 and 12)."""
    successes, responses = [], set()                           # line 3
    for record in records:
        response = record["problem"], record["response"]
        # An answer that was there before would only make its like be drawn more often.
        if record["reward"] == 1 and not record["truncated"] and response not in responses:
            responses.add(response)
            successes.append(record)                           # line 12
    return successes


# --------------------------------------------------------------------------------------------------
# One verifier call


class Attempt:
    """One verifier call: what it samples and its verdict, of which `rollouts.record` is made."""

    def __init__(self, run, x, t):
        self.run, self.x, self.t = run, x, t
        self.samples = {}  # request ("answer", "draft", "summary", "judge") -> engines.base.Sample
        self.verdict, self.verify_seconds = None, 0.0

    def seed(self, request):
        return request_seed(self.run.args.seed, self.x.id, self.t, request)

    async def sample(self, request, messages, max_tokens=None):
        """y ~ policy(. | messages). request: "answer", "draft" or "summary"."""
        engine, settings, trainer = self.run.engine, self.run.settings, self.run.trainer
        # A seed for each request: its noise does not depend on what else is in the batch.
        # logprobs_mode="processed_logprobs" (engines/): mu of Eq. 3 is after temperature and top-p.
        # Early steps first: pass@k ends at the last step that all problems have completed, and
        # the longest chains first would save a hundredth of the time (tests/bench_explore.py).
        y = await engine.sample(
            engine.encode(messages), seed=self.seed(request), priority=self.t,
            max_tokens=max_tokens or settings.max_tokens, temperature=settings.temperature,
            top_p=settings.top_p, adapter=trainer.adapter() if trainer else None)
        self.samples[request] = y
        return y

    async def verify(self, y):
        """-> (r, f) of the answer y: of a program, by its public tests alone (App. C.2)."""
        run, begin = self.run, time.time()
        self.verdict, self.samples["judge"] = await verifiers.grade(
            self.x, y.text, y.truncated(run.settings.max_tokens), run.engine, run.graders,
            public_only=True)
        self.judgment = verifiers.judge_record(self.samples["judge"])
        self.verify_seconds = time.time() - begin
        return self.verdict.reward, self.verdict.feedback


# --------------------------------------------------------------------------------------------------
# The run around it


@dataclass(frozen=True)
class ExploreArgs:
    """What to explore, resolved from the command line; the flags of the engine are in Settings.

    explore.json keeps all fields but `out`: a run goes on with its own.
    """
    bench: str                      # name, or FILE.jsonl
    split: str = "test"
    data: str | None = None         # a local copy of the bench
    method: str = "leaf"            # "leaf" | "random"
    memory: str = "leaf"            # this one and the next: the ablations of App. G.2
    compress: str = "tail"
    calls: int = 24                 # K
    restart: int | str = 5          # M, or "never"
    tail: int = 2000                # L, tokens
    seed: int = 1
    limit: int | None = None        # problems
    gpu_hours: float | None = 5.0   # None: no cap
    update_every: int | None = None  # steps (App. G.3)
    strict_math_verify: bool = False
    out: str = "out"

    def steps_a_segment(self):
        """M of `segments`: random sampling has no memory at all."""
        if self.method == "random":
            return 1
        return self.calls if self.restart == "never" else self.restart


@dataclass
class Run:
    """What the coroutines of one exploration share."""
    args: ExploreArgs
    settings: engines.Settings
    engine: engines.base.Engine
    graders: verifiers.Graders
    lines: rollouts.Lines                        # of rollouts.jsonl
    records: dict[tuple[str, int], dict]         # (problem id, step) -> line of rollouts.jsonl
    clock: Clock                                 # of this session
    bar: tqdm | None = None
    trainer: "policy.Trainer | None" = None      # with --update-every
    failures: dict[str, str] = field(default_factory=dict)  # problem id -> why it cannot go on

    def __post_init__(self):
        # The sessions before this one, a killed one too, up to the last answer.
        times = [record["elapsed_seconds"] for record in self.records.values()]
        self.earlier_seconds = max(times, default=0.0)

    def attempt(self, x, t):
        return Attempt(self, x, t)

    def memory(self, x, t):
        """(y_hat, r, f) of the answer at step t."""
        record = self.records[x.id, t]
        y_hat = record["response"] if record["tail"] is None else record["tail"]
        return y_hat, record["reward"], record["feedback"]

    def keep(self, x, record):
        """Remember an answer to x; its line is written as soon as it is graded whole."""
        self.records[x.id, record["step"]] = record
        self.lines.add(x, record)
        self.bar.update()
        if self.bar.n % 50 == 1:
            self.bar.set_postfix_str(rollouts.progress(self.records.values(), self.elapsed()))
        return record  # to the ablations, whose memory it is

    def fail(self, x, error):
        """Note, and say once, that no further step of x can be sampled."""
        if x.id not in self.failures:
            self.failures[x.id] = str(error)
            tqdm.write(f"Problem {x.id} cannot go on: {error}", file=sys.stderr)

    def elapsed(self):
        """Seconds that the run has taken so far: all its sessions, start-ups included."""
        return self.earlier_seconds + self.clock.total()

    def seconds_left(self):
        """Until the cap on GPU hours (section 3.1), or None without one."""
        if not self.args.gpu_hours:
            return None
        return max(0, self.args.gpu_hours * 3600 / self.engine.gpus - self.elapsed())


def segment_function(args):
    """What explores a segment: the method, the baseline, or an ablation of the memory."""
    if args.method == "random":
        return random_segment
    changes_memory = args.memory != "leaf" or args.compress != "tail"
    return ablations.explore_segment if changes_memory else explore_segment


async def explore(run, problems):
    """Line 2: all segments of all problems in parallel. -> whether the cap ended the run."""
    explore_steps = segment_function(run.args)

    async def admit(x, steps):
        try:
            await explore_steps(run, x, steps)
        except ContextTooLong as error:
            run.fail(x, error)

    every_segment = segments(run.args.calls, run.args.steps_a_segment())
    if run.trainer:
        update = functools.partial(train_on_cplus, run, problems)
        work = [ablations.step_by_step(run, problems, every_segment, admit, update)]
    else:
        work = [admit(x, steps) for steps in every_segment for x in problems
                if any((x.id, t) not in run.records for t in steps)]
    return await side_by_side(work, run.seconds_left())


async def train_on_cplus(run, problems, number, last_step):
    """Update `number` (App. G.3), on what C+ holds up to `last_step`: a resumed run has more."""
    import distill
    run.clock.begin("update")
    lines = [line for line in cplus_lines(run, problems) if line["step"] <= last_step]
    await distill.train_on_all(run.trainer, number, lines)
    run.clock.begin("sampling")


def cplus_lines(run, problems):
    """The lines of cplus.jsonl."""
    places = [(x.id, t) for x in problems for t in range(1, run.args.calls + 1)]
    successes = cplus(run.records[place] for place in places if place in run.records)
    return rollouts.cplus_lines(run.settings, successes, openings(run, problems))


def openings(run, problems):
    """{problem id: its plain prompt}."""
    family, args = run.settings.family, run.args
    return {x.id: ablations.opening(x, family, args.compress, args.tail) for x in problems}


async def run_engine(args, settings, update, problems, files, clock):
    """Start the engine and the graders, explore, and end both. -> (run, whether the cap ended it).

    update: UpdateArgs with --update-every, else None; files: the result of `rollouts.open_files`.
    """
    records, file = files
    graders = verifiers.Graders(strict=args.strict_math_verify)
    try:
        engine = await engines.start(settings, adapters=update is not None, folder=args.out)
        run = Run(args, settings, engine, graders, rollouts.Lines(file, graders), records, clock)
        try:
            is_capped = await explore_with_bar(run, update, problems)
        finally:
            clock.begin("saving")
            engine.close()
        clock.begin("grading")
        await run.lines.all_written()
        return run, is_capped
    finally:
        graders.close()


async def explore_with_bar(run, update, problems):
    """`explore`, the timed part, after what it needs beside the engine."""
    if update:
        run.trainer = ablations.start_trainer(run, update, [*openings(run, problems).values()])
    run.clock.begin("sampling")
    calls = len(problems) * run.args.calls
    with progress.new_bar(calls, "call", initial=len(run.records)) as run.bar:
        return await explore(run, problems)


# --------------------------------------------------------------------------------------------------
# Its results


def finish(run, problems, is_capped):
    """Write C+ and the result, and print them. Errors: BadInput, if some problems lack calls."""
    run.clock.begin("saving")
    lines = cplus_lines(run, problems)
    rollouts.write_cplus(run.args.out, lines)
    # Some problems may have no answer yet.
    attempts = {x.id: {} for x in problems} | measures.by_problem(run.records.values())
    result = rollouts.write_result(run, attempts, is_capped)
    rollouts.print_result(run, attempts, result, lines)
    if run.failures:
        raise BadInput(
            f"{len(run.failures)} of {len(problems)} problems have contexts longer than the "
            "model's window (explore.json names them), and lack calls: use a longer window or a "
            "smaller --tail, in another --out.")


# --------------------------------------------------------------------------------------------------
# Command line


def add_arguments(parser):
    add_run_arguments(parser)
    add = parser.add_argument
    add("--method", choices=["leaf", "random"], default="leaf",
        help="random: independent answers to the plain prompt")
    add("--restart", type=flags.restart_interval, default=5, metavar="M|never",
        help="the memory is reset every M steps")
    add("--tail", type=flags.positive_int, default=2000,
        help="L, tokens of a longer response that the memory keeps")
    ablations.add_arguments(parser)


def add_run_arguments(parser, train_calls=20):
    """The flags of a run that explores, a baseline's too; train_calls: its K of --split train."""
    add = parser.add_argument
    add("--bench", required=True,
        help="math500, lcb, mbpp, sciknoweval, arithmetic, or a FILE.jsonl of your own")
    add("--split", choices=["test", "train"], default="test", help="train: the sets of App. E.1")
    add("--data", help="local copy of the bench in its upstream format (default: fetched)")
    add("--calls", type=flags.positive_int,
        help=f"K, calls a problem (default: 24; train: {train_calls})")
    add("--seed", type=flags.positive_int, default=1, help="run seed")
    add("--limit", type=flags.positive_int, help="only the first N problems (default: all)")
    add("--gpu-hours", type=flags.above_zero, help="stop after so many (default: 5; train: no cap)")
    add("--out", default="out", help="folder of the run")
    verifiers.add_arguments(parser)
    engines.add_arguments(parser)


def run_args(given, train_calls=20):
    """-> ExploreArgs of the parsed flags; those that they lack are as usual."""
    names = [f.name for f in dataclasses.fields(ExploreArgs)]
    values = {name: getattr(given, name) for name in names if hasattr(given, name)}
    is_training = given.split == "train"
    values["calls"] = given.calls or (train_calls if is_training else 24)
    values["gpu_hours"] = given.gpu_hours or (None if is_training else 5.0)
    return ExploreArgs(**values)


def parse(argv):
    """-> (ExploreArgs, engines.Settings, UpdateArgs or None). Errors: BadInput."""
    parser = flags.Parser(
        description="Explore with a memory for each problem (Algorithm 1, lines 1-12).")
    add_arguments(parser)
    given = parser.parse_args(argv)
    ablations.check(given, parser)
    trains = given.update_every is not None
    settings = engines.settings(given, given.bench, adapters=trains, trains=trains)
    update = given.update_every and flags.update_args(given, settings.temperature, given.bench)
    return run_args(given), settings, update


def announce(args, settings, problems, records):
    split = f" {args.split}" if args.bench in benches.BENCHES else ""
    print(f"explore: {args.bench}{split}, {len(problems)} problems, {args.calls} calls each, "
          f"{args.method}; {engines.describe(settings)}", flush=True)
    if records:
        is_finished = len(records) >= len(problems) * args.calls
        whole = "the run is finished" if is_finished else "the run goes on"
        print(f"{len(records)} answers are there already; {whole}.", flush=True)


def main(argv=None):
    clock = Clock("startup")
    args, settings, update = parse(argv)
    problems = benches.load(args.bench, args.split, args.data, args.limit)
    written = ("rollouts.jsonl", "problems.json", "cplus.jsonl", "updates")
    inputs = [args.bench, args.data, settings.model]
    outputs.claim_run(args.out, "explore.json", written, inputs)
    with journal.lock(args.out):
        records, file = rollouts.open_files(args, settings, update, problems)
        announce(args, settings, problems, records)
        sentence = f"Stopped. Every graded answer is in {file.name}; the same command goes on."
        with file, journal.synced(file), journal.stoppable(sentence):
            work = run_engine(args, settings, update, problems, (records, file), clock)
            run, is_capped = asyncio.run(work)
        finish(run, problems, is_capped)


if __name__ == "__main__":
    exit_with_sentence(main)
