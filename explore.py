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
import argparse
import asyncio
import dataclasses
import functools
import json
import os
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

import engines
import ablations
import benches
import prompts
import verifiers
from common import flags, journal
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
        run.keep(attempt.record(c, y_hat))                     # for line 12: see `cplus`


async def random_segment(run, x, steps):
    """The baseline, independent sampling: every answer is given to the plain prompt."""
    for t in steps:
        if (x.id, t) not in run.records:
            attempt = run.attempt(x, t)
            c = prompts.opening(x, run.settings.family)
            y = await attempt.sample("answer", c)
            await attempt.verify(y)
            run.keep(attempt.record(c, tail(y, run.args.tail, run.engine.tokenizer)))


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

# The fields of rollouts.jsonl with the tokens of each request: prompt, completion.
TOKEN_FIELDS = {
    "answer": ("prompt_tokens", "completion_tokens"),
    "draft": ("draft_prompt_tokens", "draft_tokens"),
    "summary": ("summary_prompt_tokens", "summary_tokens"),
    "judge": ("judge_prompt_tokens", "judge_tokens"),
}


class Attempt:
    """One verifier call: what it samples, what that costs, and its line of rollouts.jsonl."""

    def __init__(self, run, x, t):
        self.run, self.x, self.t = run, x, t
        self.samples = {}  # request ("answer", "draft", "summary", "judge") -> engines.base.Sample
        self.verdict = None
        self.started = time.time()
        self.sampled = None

    def seed(self, request):
        return request_seed(self.run.args.seed, self.x.id, self.t, request)

    async def sample(self, request, messages, max_tokens=None):
        """y ~ policy(. | messages). request: "answer", "draft" or "summary"."""
        engine, settings, trainer = self.run.engine, self.run.settings, self.run.trainer
        # A seed for each request: its noise does not depend on what else is in the batch.
        # logprobs_mode="processed_logprobs" (engines/): mu of Eq. 3 is after temperature and top-p.
        # Priority by step: pass@k ends at the last step that all problems have completed.
        y = await engine.sample(
            engine.encode(messages), seed=self.seed(request), priority=self.t,
            max_tokens=max_tokens or settings.max_tokens, temperature=settings.temperature,
            top_p=settings.top_p, adapter=trainer.adapter() if trainer else None)
        self.samples[request] = y
        return y

    async def verify(self, y):
        """-> (r, f) of the answer y; the whole verdict goes into the record."""
        run, self.sampled = self.run, time.time()
        self.verdict, self.samples["judge"] = await verifiers.grade(
            self.x, y.text, y.truncated(run.settings.max_tokens), run.engine, run.graders)
        return self.verdict.reward, self.verdict.feedback

    def token_counts(self):
        """{field: tokens} of TOKEN_FIELDS; 0 for a request that was not made."""
        counts = {}
        for request, (prompt, completion) in TOKEN_FIELDS.items():
            sample = self.samples.get(request)
            counts[prompt] = sample.prompt_tokens if sample else 0
            counts[completion] = len(sample.token_ids) if sample else 0
        return counts

    def record(self, c, y_hat):
        """The line of rollouts.jsonl; y_hat: what the next context shows of the answer to c."""
        run, x, y = self.run, self.x, self.samples["answer"]
        draft, summary = self.samples.get("draft"), self.samples.get("summary")
        return {
            "problem": x.id, "bench": x.bench, "method": run.args.method, "step": self.t,
            "restart": draft is not None,
            "updates": run.trainer.done if run.trainer else 0,
            "context": c, "response": y.text,
            "tail": y_hat if len(y.token_ids) > run.args.tail else None,
            "draft": draft.text if draft else None,
            "summary": summary.text if summary else None,
            **self.token_counts(),
            "finish_reason": y.finish_reason,
            "truncated": y.truncated(run.settings.max_tokens),
            **dataclasses.asdict(self.verdict),  # reward, correct, feedback, signature, fault
            "seed": self.seed("answer"),
            "sample_seconds": round(self.sampled - self.started, 3),
            "verify_seconds": round(time.time() - self.sampled, 3),
            "elapsed_seconds": round(run.elapsed(), 3),
        }


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
    out: str = "out"

    def steps_a_segment(self):
        """M of `segments`: random sampling has no memory at all."""
        if self.method == "random":
            return 1
        return self.calls if self.restart == "never" else self.restart

    def opening(self, family, x):
        """The plain prompt x of this run."""
        return ablations.opening(x, family, self.compress, self.tail)


@dataclass
class Run:
    """What the coroutines of one exploration share."""
    args: ExploreArgs
    settings: engines.Settings
    engine: engines.base.Engine
    graders: verifiers.Graders
    journal: TextIO                              # rollouts.jsonl, open for appending
    records: dict[tuple[str, int], dict]         # (problem id, step) -> line of rollouts.jsonl
    earlier_seconds: float                       # that earlier sessions of this run took
    bar: tqdm | None = None
    trainer: "policy.Trainer | None" = None      # with --update-every
    tokens: int = 0                              # sampled in this session
    started: float = field(default_factory=time.time)
    failures: dict[str, str] = field(default_factory=dict)  # problem id -> why it cannot go on

    def attempt(self, x, t):
        return Attempt(self, x, t)

    def memory(self, x, t):
        """(y_hat, r, f) of the answer at step t."""
        record = self.records[x.id, t]
        y_hat = record["response"] if record["tail"] is None else record["tail"]
        return y_hat, record["reward"], record["feedback"]

    def keep(self, record):
        """A verifier call counts from here on: its line is with the operating system."""
        self.records[record["problem"], record["step"]] = record
        self.tokens += sum(record[completion] for _, completion in TOKEN_FIELDS.values())
        journal.append(self.journal, record)
        self.show_progress()
        return record  # to the ablations, whose memory it is

    def fail(self, x, error):
        """Note, and say once, that no further step of x can be sampled."""
        if x.id not in self.failures:
            self.failures[x.id] = str(error)
            tqdm.write(f"Problem {x.id} cannot go on: {error}", file=sys.stderr)

    def elapsed(self):
        """Seconds that the run has taken so far: all its sessions, start-ups included."""
        return self.earlier_seconds + self.engine.startup_seconds + time.time() - self.started

    def seconds_left(self):
        """Until the cap on GPU hours (section 3.1), or None without one."""
        if not self.args.gpu_hours:
            return None
        return max(0, self.args.gpu_hours * 3600 / self.engine.gpus - self.elapsed())

    def show_progress(self):
        self.bar.update()
        if self.bar.n % 50 != 1:
            return
        tried = {problem for problem, _ in self.records}
        solved = {r["problem"] for r in self.records.values() if r["correct"]}
        rate = self.tokens / (time.time() - self.started)
        share = len(solved) / len(tried)
        self.bar.set_postfix_str(f"{share:.1%} solved, {rate:,.0f} tokens/s")


def segment_function(args):
    """What explores a segment: the method, the baseline, or an ablation of the memory."""
    if args.method == "random":
        return random_segment
    changes_memory = args.memory != "leaf" or args.compress != "tail"
    return ablations.explore_segment if changes_memory else explore_segment


async def explore(run, problems):
    """Line 2: all problems in parallel. -> whether the cap on GPU hours ended the run.

    All segments of all problems, the earliest steps first, at most as many in flight as keep the
    engine full.
    """
    explore_steps = segment_function(run.args)
    # Twice what the engine samples at a time, as half of them may be with the graders.
    in_flight = asyncio.Semaphore(2 * run.engine.slots)

    async def admit(x, steps):
        async with in_flight:
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
    lines = [line for line in cplus_lines(run, problems) if line["step"] <= last_step]
    await distill.train_on_all(run.trainer, number, lines)


def cplus_lines(run, problems):
    """The lines of cplus.jsonl."""
    s, steps = run.settings, range(1, run.args.calls + 1)
    decoding = {"temperature": s.temperature, "top_p": s.top_p, "max_tokens": s.max_tokens}
    openings = {x.id: run.args.opening(s.family, x) for x in problems}
    places = [(x.id, t) for x in problems for t in steps]
    successes = cplus(run.records[place] for place in places if place in run.records)
    return [{
        "problem": r["problem"], "bench": r["bench"], "model": s.model, "family": s.family,
        "decoding": decoding, "opening": openings[r["problem"]], "context": r["context"],
        "response": r["response"], "step": r["step"],
    } for r in successes]


async def run_engine(args, settings, update, problems, files):
    """Start the engine and the graders, explore, and end both. -> (run, whether the cap ended it).

    update: UpdateArgs with --update-every, else None; files: the result of `open_files`.
    """
    records, file = files
    engine = await engines.start(settings, adapters=update is not None, folder=args.out)
    earlier_seconds = max((r["elapsed_seconds"] for r in records.values()), default=0.0)
    run = Run(args, settings, engine, verifiers.Graders(), file, records, earlier_seconds)
    run.bar = tqdm(total=len(problems) * args.calls, initial=len(records), unit="call",
                   disable=None)
    try:
        if update:
            openings = [args.opening(settings.family, x) for x in problems]
            run.trainer = ablations.start_trainer(run, update, openings)
        return run, await explore(run, problems)
    finally:
        run.bar.close()
        run.graders.close()
        engine.close()


# --------------------------------------------------------------------------------------------------
# Its files and its results


def open_files(args, settings, update, problems):
    """Open the files of the run in --out, a new one or one that goes on.

    -> ({(problem id, step): record}, rollouts.jsonl). Errors: BadInput, if it is another run's.
    """
    values = dataclasses.asdict(args)
    del values["out"]
    growable = ("calls", "limit", "gpu_hours")
    if update:
        values |= {"lr": update.lr, "tau": update.tau, "divergence": update.divergence}
        # Another problem would have needed the adapters of the steps that are over.
        growable = ("calls", "gpu_hours")
    values |= settings.kept()
    return journal.open_rollouts(args.out, values, growable, problems)


def write_result(run, attempts, is_capped):
    """Into explore.json. attempts: {problem id: {step: record}}. -> the result."""
    engine = run.engine
    result = {
        "problems": len(attempts), "answers": len(run.records),
        "startup_seconds": engine.startup_seconds,
        "wall_seconds": run.elapsed() - engine.startup_seconds,
        "gpus": engine.gpus, "parameters": engine.parameters,
        "faults": sum(r["fault"] is not None for r in run.records.values()),
        "complete_steps": measures.complete_steps(attempts), "capped": is_capped,
        "failed": run.failures,
    }
    path = os.path.join(run.args.out, "explore.json")
    journal.write_json(path, journal.read_json(path) | {"result": result})
    return result


def print_result(run, attempts, result):
    faults, last_step = result["faults"], result["complete_steps"]
    if result["capped"]:
        print(f"The cap of {run.args.gpu_hours:g} GPU hours ended the run; all problems have "
              f"{last_step} calls.")
    if faults:
        print(f"The verifier itself failed on {faults} answers, which count as wrong "
              '(field "fault").')
    if last_step:
        passed = measures.pass_curve(attempts, last_step)
        accuracy = measures.per_answer_curve(attempts, last_step, "correct")
        print(f"pass@{last_step} {passed[-1]:.1%}, mean accuracy {accuracy[-1]:.1%}, "
              f"{len(run.records)} answers in {run.elapsed():.0f} s")


def finish(run, problems, is_capped):
    """Write C+ and the result, and print them. Errors: BadInput, if some problems lack calls."""
    path, lines = os.path.join(run.args.out, "cplus.jsonl"), cplus_lines(run, problems)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    journal.write_bytes(path, text.encode())
    # Some problems may have no answer yet.
    attempts = {x.id: {} for x in problems} | measures.by_problem(run.records.values())
    print_result(run, attempts, write_result(run, attempts, is_capped))
    solved = {line["problem"] for line in lines}
    print(f"C+ holds {len(lines)} contexts of {len(solved)} problems: {path}")
    if run.failures:
        raise BadInput(
            f"{len(run.failures)} of {len(problems)} problems have contexts longer than the "
            "model's window (explore.json names them), and lack calls: use a longer window or a "
            "smaller --tail, in another --out.")


# --------------------------------------------------------------------------------------------------
# Command line


def restart_interval(text):
    """argparse type: M, or "never"."""
    return text if text == "never" else flags.positive_int(text)


def add_arguments(parser):
    add = parser.add_argument
    add("--bench", required=True,
        help="math500, lcb, mbpp, sciknoweval, arithmetic, or a FILE.jsonl of your own")
    add("--split", choices=["test", "train"], default="test", help="train: the sets of App. E.1")
    add("--data", help="local copy of the bench in its upstream format")
    add("--method", choices=["leaf", "random"], default="leaf")
    add("--memory", choices=ablations.MEMORIES, default="leaf",
        help="what a carry step's context holds (App. G.2)")
    add("--compress", choices=ablations.COMPRESSIONS, default="tail",
        help="how the memory shows a response of more than L tokens (Table 24)")
    add("--calls", type=flags.positive_int, help="K, calls a problem (default: 24; train: 20)")
    add("--restart", type=restart_interval, default=5, metavar="M|never",
        help="the memory is reset every M steps")
    add("--tail", type=flags.positive_int, default=2000,
        help="L, tokens of a longer response that the memory keeps")
    add("--seed", type=flags.positive_int, default=1, help="run seed")
    add("--limit", type=flags.positive_int, help="only the first N problems")
    add("--gpu-hours", type=flags.above_zero, help="stop after so many (default: 5; train: no cap)")
    add("--out", default="out", help="folder of the run")
    engines.add_arguments(parser)
    group = parser.add_argument_group("updates between the steps (App. G.3)")
    group.add_argument("--update-every", type=flags.positive_int, metavar="N",
                       help="update the policy after every N steps")
    flags.add_update_arguments(group, lr=1e-6)


def parse(argv):
    """-> (ExploreArgs, engines.Settings, UpdateArgs or None). Errors: BadInput."""
    parser = argparse.ArgumentParser(
        description="Explore with a memory for each problem (Algorithm 1, lines 1-12).")
    add_arguments(parser)
    given = parser.parse_args(argv)
    ablations.check(given, parser)
    values = {f.name: getattr(given, f.name) for f in dataclasses.fields(ExploreArgs)}
    is_training = given.split == "train"
    values["calls"] = given.calls or (20 if is_training else 24)
    values["gpu_hours"] = given.gpu_hours or (None if is_training else 5.0)
    # Beside the updates the engine leaves room for the trainer.
    gpu_memory = 0.4 if given.update_every else 0.9
    settings = engines.settings(given, given.bench, gpu_memory=gpu_memory)
    update = None
    if given.update_every:
        update = flags.update_args(given, settings.temperature, given.bench)
    return ExploreArgs(**values), settings, update


def announce(args, settings, problems, records):
    split = f" {args.split}" if args.bench in benches.BENCHES else ""
    print(f"explore: {args.bench}{split}, {len(problems)} problems, {args.calls} calls each, "
          f"{args.method}; {engines.describe(settings)}", flush=True)
    if records:
        print(f"{len(records)} answers are there already; the run goes on.", flush=True)


def main(argv=None):
    args, settings, update = parse(argv)
    problems = benches.load(args.bench, args.split, args.data, args.limit)
    with journal.lock(args.out):
        records, file = open_files(args, settings, update, problems)
        announce(args, settings, problems, records)
        sentence = f"Stopped. Every graded answer is in {file.name}; the same command goes on."
        with file, journal.stoppable(sentence):
            work = run_engine(args, settings, update, problems, (records, file))
            run, is_capped = asyncio.run(work)
        finish(run, problems, is_capped)


if __name__ == "__main__":
    exit_with_sentence(main)
