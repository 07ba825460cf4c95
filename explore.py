"""Exploration with a per-problem memory: Algorithm 1, lines 1-12 (section 2.2, App. B.1, B.2).

    python explore.py --bench math500                     # LEAF, K = 24 verifier calls a problem
    python explore.py --bench math500 --method random     # the baseline: one answer per call from the plain prompt

The memory of a problem is reset at every restart, so with fixed parameters the segments between restarts do not depend
on one another: they run at the same time, each a coroutine of its own, and no step waits for another problem or
segment. This changes neither the distribution of the answers nor pass@k, only the order in which they are finished.

Writes rollouts.jsonl (one line per verifier call, as soon as it is graded), cplus.jsonl (C+, what distill.py reads) and
explore.json into --out. The same command goes on where a run stopped; larger --calls or --limit extend it.
"""
import argparse
import asyncio
import dataclasses
import json
import os
import sys
import time

import engines
import ablations
import benches
import distill
import policy
import prompts
import verifiers
from common import journal
from common.errors import BadInput, ContextTooLong, exit_with_sentence
from engines.base import request_seed, side_by_side
from report import measures

from tqdm import tqdm


# ---------------------------------------------------------------------------------------------------------------------
# Algorithm 1


async def explore_segment(run, problem, steps):
    """Lines 4-12, from one restart of a problem to the next. Errors: ContextTooLong."""
    family, memory = run.settings.family, None                     # m_t: the last attempt, or nothing yet
    for t in steps:
        if (problem.id, t) in run.done:                            # graded by an earlier session of this run
            memory = run.done[problem.id, t]
            continue
        attempt = run.attempt(problem, t)                          # its seeds, its costs, its line of rollouts.jsonl
        if memory is None:                                         # line 5: restart
            # A fresh draft, revised blindly: no verdict is known yet, and old attempts must not mislead (section 2.2).
            draft = await attempt.sample("draft", prompts.opening(problem, family))                    # line 6
            c = prompts.restart(problem, family, shown(draft.text, run.tail(draft)))                   # line 7
        else:
            # Only the last answer: older ones have been revised already (section 3.3.1).
            last = shown(memory["response"], memory["tail"])
            c = prompts.carry(problem, family, last, memory["reward"], memory["feedback"])             # lines 9, 10
        y = await attempt.sample("answer", c)                      # line 11: y_t ~ policy(. | c_t)
        verdict = await attempt.verify(y)                          #          r_t, f_t
        memory = run.keep(attempt.record(c, y, verdict, run.tail(y)))  # line 12: `cplus` picks from these


async def random_segment(run, problem, steps):
    """The baseline: a segment is one step, from the plain prompt."""
    for t in steps:
        if (problem.id, t) not in run.done:
            attempt = run.attempt(problem, t)
            c = prompts.opening(problem, run.settings.family)
            y = await attempt.sample("answer", c)
            run.keep(attempt.record(c, y, await attempt.verify(y), run.tail(y)))


def tail(sample, length, tokenizer):
    """tail_L: the text of the last L tokens of a longer response (the result stands at its end); None for a shorter
    one, which is shown whole."""
    if len(sample.token_ids) <= length:
        return None
    return tokenizer.decode(sample.token_ids[-length:], skip_special_tokens=True)


def shown(response, tail):
    """What the next context shows of a response."""
    return response if tail is None else tail


def segments(method, calls, restart):
    """The steps 1..K cut where the memory is reset: [[1..M], [M+1..2M], ...]; random sampling has no memory at all."""
    every = 1 if method == "random" else calls if restart == "never" else restart
    return [range(first, min(first + every, calls + 1)) for first in range(1, calls + 1, every)]


def cplus(records):
    """C+ (lines 3 and 12) of `records` in order of problem and step; of equal responses it holds the first."""
    seen, kept = set(), []
    for record in records:
        said = (record["problem"], record["response"])
        if record["reward"] == 1 and not record["truncated"] and said not in seen:
            seen.add(said)
            kept.append(record)
    return kept


# ---------------------------------------------------------------------------------------------------------------------
# The run around it


class Attempt:
    """One verifier call: what it samples, what that costs, and its line of rollouts.jsonl."""

    def __init__(self, run, problem, t):
        self.run, self.problem, self.t = run, problem, t
        self.samples = {}  # "draft" | "summary" | "answer" | "judge" -> engines.base.Sample
        self.begin = time.time()

    async def sample(self, kind, messages, max_tokens=None):
        """y ~ policy(. | messages), seeded with (run seed, problem, step, kind); earlier steps first in the queue."""
        run, s = self.run, self.run.settings
        self.samples[kind] = await run.engine.sample(
            run.engine.encode(messages), seed=request_seed(run.args.seed, self.problem.id, self.t, kind),
            max_tokens=max_tokens or s.max_tokens, temperature=s.temperature, top_p=s.top_p,
            adapter=run.trainer and run.trainer.adapter(), priority=self.t)
        return self.samples[kind]

    async def verify(self, y):
        """-> the Verdict on the answer y."""
        self.sampled = time.time()
        verdict, self.samples["judge"] = await verifiers.grade(
            self.problem, y.text, y.truncated(self.run.settings.max_tokens), self.run.engine, self.run.graders)
        return verdict

    def record(self, context, y, verdict, tail):
        """The line of rollouts.jsonl."""
        run, (draft, summary, judge) = self.run, map(self.samples.get, ("draft", "summary", "judge"))

        def cost(kind, sample):
            return {f"{kind}prompt_tokens": sample.prompt_tokens if sample else 0,
                    f"{kind or 'completion_'}tokens": len(sample.token_ids) if sample else 0}
        return {
            "problem": self.problem.id, "bench": self.problem.bench, "method": run.args.method, "step": self.t,
            "restart": draft is not None, "updates": run.trainer.done if run.trainer else 0, "context": context,
            "response": y.text, "tail": tail, "draft": draft and draft.text, "summary": summary and summary.text,
            **cost("", y), **cost("draft_", draft), **cost("summary_", summary), **cost("judge_", judge),
            "finish_reason": y.finish_reason, "truncated": y.truncated(run.settings.max_tokens),
            **dataclasses.asdict(verdict),  # reward, correct, feedback, signature, fault
            "seed": request_seed(run.args.seed, self.problem.id, self.t, "answer"),
            "sample_seconds": round(self.sampled - self.begin, 3),
            "verify_seconds": round(time.time() - self.sampled, 3), "elapsed_seconds": round(run.elapsed(), 3)}


@dataclasses.dataclass
class Run:
    """What the coroutines of one exploration share."""
    args: argparse.Namespace
    settings: engines.Settings
    engine: engines.base.Engine
    graders: verifiers.Graders
    journal: object                                # rollouts.jsonl, open for appending
    done: dict                                     # (problem id, step) -> record
    clock: float                                   # seconds that earlier sessions of this run took
    bar: tqdm = None
    trainer: policy.Trainer = None                 # with --update-every
    tokens: int = 0                                # sampled in this session
    begin: float = dataclasses.field(default_factory=time.time)
    failed: dict = dataclasses.field(default_factory=dict)  # problem id -> why it cannot go on

    def __post_init__(self):
        changed = ablations.explore_segment if ablations.changes_memory(self.args) else explore_segment
        self.segment = random_segment if self.args.method == "random" else changed

    def attempt(self, problem, t):
        return Attempt(self, problem, t)

    def tail(self, sample):
        return tail(sample, self.args.tail, self.engine.tokenizer)

    def keep(self, record):
        """A verifier call counts from here on: its line is with the operating system."""
        self.done[record["problem"], record["step"]] = record
        self.tokens += sum(record[name] for name in ("completion_tokens", "draft_tokens", "summary_tokens",
                                                     "judge_tokens"))
        journal.append(self.journal, record)
        show_progress(self)
        return record

    def elapsed(self):
        """Seconds that the run has taken so far: all its sessions, start-ups included."""
        return self.clock + self.engine.startup_seconds + time.time() - self.begin


async def explore(run, problems):
    """All segments of all problems, the earliest steps first, at most as many in flight as keep the engine full.

    Returns whether the GPU-hour cap (section 3.1) ended the run.
    """
    places = asyncio.Semaphore(2 * run.engine.slots)  # half of them may be with the graders

    async def admitted(problem, steps):
        async with places:
            try:
                await run.segment(run, problem, steps)
            except ContextTooLong as error:
                if problem.id not in run.failed:
                    run.failed[problem.id] = str(error)
                    tqdm.write(f"Problem {problem.id} cannot go on: {error}", file=sys.stderr)

    cut = segments(run.args.method, run.args.calls, run.args.restart)
    if run.trainer:
        async def update(number, last):
            """On what C+ holds up to step `last`: a run that goes on has more."""
            so_far = [line for line in cplus_lines(run, problems) if line["step"] <= last]
            await distill.train_on_all(run.trainer, number, so_far)
        work = [ablations.step_by_step(run, problems, cut, admitted, update)]
    else:
        work = [admitted(problem, steps) for steps in cut for problem in problems
                if any((problem.id, t) not in run.done for t in steps)]
    cap = run.args.gpu_hours and max(0, run.args.gpu_hours * 3600 / run.engine.gpus - run.elapsed())
    return await side_by_side(work, cap)


def show_progress(run):
    run.bar.update()
    if run.bar.n % 50 == 1:
        solved = len({problem for (problem, _), record in run.done.items() if record["correct"]})
        share, rate = solved / len({problem for problem, _ in run.done}), run.tokens / (time.time() - run.begin)
        run.bar.set_postfix_str(f"{share:.1%} solved, {rate:,.0f} tokens/s")


def begin(args, how, settings, problems):
    """Open the run's files, or those of the run that goes on. -> ({(problem id, step): record}, rollouts.jsonl)."""
    flags = ("bench", "split", "data", "method", "memory", "compress", "calls", "restart", "tail", "seed", "limit",
             "gpu_hours", "update_every")
    kept, growable = {name: getattr(args, name) for name in flags}, ("calls", "limit", "gpu_hours")
    if args.update_every:  # another problem would have needed the adapters of the steps that are over
        kept |= {name: getattr(how, name) for name in ("lr", "tau", "divergence")}
        growable = ("calls", "gpu_hours")
    return journal.open_rollouts(args.out, kept | dataclasses.asdict(settings), growable, problems)


async def main_async(args, how, settings, problems, records, file):
    """Start the engine and the graders, explore, and end both. -> (run, capped)."""
    engine = await engines.start(settings, adapters=bool(args.update_every), folder=args.out)
    run = Run(args, settings, engine, verifiers.Graders(), file, records,
              clock=max((r["elapsed_seconds"] for r in records.values()), default=0.0))
    run.bar = tqdm(total=len(problems) * args.calls, initial=len(records), unit="call", disable=None)
    try:
        if args.update_every:
            openings = [ablations.opening(args, settings.family, p) for p in problems]
            run.trainer = ablations.start_trainer(run, how, openings)
        return run, await explore(run, problems)
    finally:
        run.bar.close()
        run.graders.close()
        engine.close()


def cplus_lines(run, problems):
    """The lines of cplus.jsonl."""
    steps, s = range(1, run.args.calls + 1), run.settings
    decoding = {"temperature": s.temperature, "top_p": s.top_p, "max_tokens": s.max_tokens}
    openings = {p.id: ablations.opening(run.args, s.family, p) for p in problems}
    return [{"problem": r["problem"], "bench": r["bench"], "model": s.model, "family": s.family, "decoding": decoding,
             "opening": openings[r["problem"]], "context": r["context"], "response": r["response"], "step": r["step"]}
            for r in cplus(run.done[p.id, t] for p in problems for t in steps if (p.id, t) in run.done)]


def finish(run, problems, kept, capped):
    """Results into explore.json and onto the screen."""
    attempts = {p.id: {} for p in problems} | measures.by_problem(run.done.values())  # some may have no answer yet
    last = measures.complete_steps(attempts)
    faults = sum(r["fault"] is not None for r in run.done.values())
    result = {"problems": len(problems), "answers": len(run.done), "startup_seconds": run.engine.startup_seconds,
              "wall_seconds": run.elapsed() - run.engine.startup_seconds, "gpus": run.engine.gpus,
              "parameters": run.engine.parameters, "faults": faults, "complete_steps": last, "capped": capped,
              "failed": run.failed}
    path = os.path.join(run.args.out, "explore.json")
    journal.write_json(path, journal.read_json(path) | {"result": result})
    if capped:
        print(f"The cap of {run.args.gpu_hours:g} GPU hours ended the run; all problems have {last} calls.")
    if faults:
        print(f"The verifier itself failed on {faults} answers, which count as wrong (field \"fault\").")
    if last:
        passed, accuracy = measures.pass_curve(attempts, last), measures.per_answer_curve(attempts, last, "correct")
        print(f"pass@{last} {passed[-1]:.1%}, mean accuracy {accuracy[-1]:.1%}, "
              f"{len(run.done)} answers in {run.elapsed():.0f} s")
    print(f"C+ holds {len(kept)} contexts of {len({r['problem'] for r in kept})} problems: "
          f"{os.path.join(run.args.out, 'cplus.jsonl')}")
    if run.failed:
        raise BadInput(
            f"{len(run.failed)} of {len(problems)} problems have contexts longer than the model's window (explore.json "
            "names them), and lack calls: use a longer window or a smaller --tail, in another --out.")


def main(argv=None):
    parser = argparse.ArgumentParser(description="Explore with a memory for each problem (Algorithm 1, lines 1-12).")
    parser.add_argument("--bench", required=True,
                        help="math500, lcb, mbpp, sciknoweval, arithmetic, or a FILE.jsonl of your own")
    parser.add_argument("--split", choices=["test", "train"], default="test", help="train: the sets of App. E.1")
    parser.add_argument("--data", help="local copy of the bench in its upstream format")
    parser.add_argument("--method", choices=["leaf", "random"], default="leaf")
    parser.add_argument("--memory", choices=["leaf", "no-response", "no-feedback", "last3"], default="leaf",
                        help="what a carry step's context holds (App. G.2)")
    parser.add_argument("--compress", choices=["tail", "none", "head-tail", "summary", "block", "low-logprob"],
                        default="tail", help="how the memory shows a response of more than L tokens (Table 24)")
    parser.add_argument("--calls", type=engines.positive_int, help="K, calls a problem (default: 24; train: 20)")
    parser.add_argument("--restart", default=5, metavar="M|never", help="the memory is reset every M steps",
                        type=lambda text: text if text == "never" else engines.positive_int(text))
    parser.add_argument("--tail", type=engines.positive_int, default=2000,
                        help="L, tokens of a longer response that the memory keeps")
    parser.add_argument("--seed", type=engines.positive_int, default=1, help="run seed")
    parser.add_argument("--limit", type=engines.positive_int, help="only the first N problems")
    parser.add_argument("--gpu-hours", type=policy.above_zero, help="stop after so many (default: 5; train: no cap)")
    parser.add_argument("--out", default="out", help="folder of the run")
    engines.add_arguments(parser)
    group = parser.add_argument_group("updates between the steps (App. G.3)")
    group.add_argument("--update-every", type=engines.positive_int, metavar="N",
                       help="update the policy after every N steps")
    policy.add_arguments(group, lr=1e-6)
    args = parser.parse_args(argv)
    ablations.check(args, parser)
    args.calls = args.calls or (20 if args.split == "train" else 24)
    args.gpu_hours = args.gpu_hours or (None if args.split == "train" else 5.0)
    settings = engines.settings(args, args.bench, gpu_memory=0.4 if args.update_every else 0.9)
    how = policy.update_args(args, settings, args.bench) if args.update_every else None
    problems = benches.load(args.bench, args.split, args.data, args.limit)
    with journal.hold(args.out):
        records, file = begin(args, how, settings, problems)
        split = f" {args.split}" if args.bench in benches.BENCHES else ""
        print(f"explore: {args.bench}{split}, {len(problems)} problems, {args.calls} calls each, {args.method}; "
              f"{engines.describe(settings)}", flush=True)
        if records:
            print(f"{len(records)} answers are there already; the run goes on.", flush=True)
        with file, journal.stoppable(f"Stopped. Every graded answer is in {file.name}; the same command goes on."):
            run, capped = asyncio.run(main_async(args, how, settings, problems, records, file))
        kept = cplus_lines(run, problems)
        cplus_text = "".join(json.dumps(line) + "\n" for line in kept)
        journal.write_bytes(os.path.join(args.out, "cplus.jsonl"), cplus_text.encode())
        finish(run, problems, kept, capped)


if __name__ == "__main__":
    exit_with_sentence(main)
