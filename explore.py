"""Exploration with a per-problem memory: Algorithm 1, lines 1-12 (section 2.2, App. B.1, B.2).

    python explore.py --bench math500                     # LEAF, K = 24 verifier calls a problem
    python explore.py --bench math500 --method random     # the baseline: one answer per call from the plain prompt

The memory of a problem is reset at every restart, so with fixed parameters the segments between restarts are independent of
one another: they run at the same time, each a coroutine of its own, and no step waits for another problem or segment. This
changes neither the distribution of the answers nor pass@k, only the order in which they are finished.

Writes rollouts.jsonl (one line per verifier call, as soon as it is graded), cplus.jsonl (C+, what distill.py reads) and
explore.json into --out. The same command goes on where a run stopped; larger --calls or --limit extend it.
"""
import argparse
import asyncio
import dataclasses
import hashlib
import json
import os
import sys
import time
from dataclasses import dataclass, field

from tqdm import tqdm

import data
import engine
import measures
import prompts
import runs
import verifiers


@dataclass
class Run:
    """What the coroutines of one exploration share."""
    args: argparse.Namespace
    settings: engine.Settings
    engine: object
    graders: verifiers.Graders
    journal: object                                # rollouts.jsonl, open for appending
    done: dict                                     # (problem id, step) -> record
    clock: float                                   # seconds that earlier sessions of this run took
    bar: tqdm = None
    tokens: int = 0                                # sampled in this session
    begin: float = field(default_factory=time.time)
    failed: dict = field(default_factory=dict)     # problem id -> why it cannot go on


# ---------------------------------------------------------------------------------------------------------------------
# Algorithm 1


def segments(method, calls, restart):
    """The steps 1..K cut where the memory is reset: [[1..M], [M+1..2M], ...]; random sampling has no memory at all."""
    every = 1 if method == "random" else calls if restart == "never" else restart
    return [range(first, min(first + every, calls + 1)) for first in range(1, calls + 1, every)]


async def explore_segment(run, problem, steps):
    """Lines 4-12 for the steps of one segment of one problem. Errors: engine.ContextTooLong."""
    rounds = []  # the graded answers since the restart; only the newest is the memory m, unless --memory last3
    for t in steps:
        if (problem.id, t) not in run.done:
            run.done[problem.id, t] = record = await explore_step(run, problem, t, rounds)
            runs.append(run.journal, record)
            show_progress(run)
        rounds.append(run.done[problem.id, t])


async def explore_step(run, problem, t, rounds):
    """One verifier call: make the context c_t, sample y_t, grade it. -> the record of rollouts.jsonl."""
    family, memory, draft, draft_sample = run.settings.family, run.args.memory, None, None
    seconds = time.time()
    if run.args.method == "random":
        context = prompts.opening(problem, family)
    elif not rounds:                                                                     # line 5: restart
        draft_sample = await sample(run, problem, t, prompts.opening(problem, family), "draft")  # line 6
        draft = draft_sample.text
        context = prompts.restart(problem, family, tail(run, draft_sample) or draft)     # line 7
    elif memory == "no-response":
        context = prompts.carry_without_response(problem, family, rounds[-1]["reward"], rounds[-1]["feedback"])
    elif memory == "no-feedback":
        context = prompts.restart(problem, family, shown(rounds[-1]))
    else:                                                                                # lines 9 and 10
        *earlier, last = [(shown(r), r["reward"], r["feedback"]) for r in rounds[-3 if memory == "last3" else -1:]]
        context = prompts.carry(problem, family, *last, earlier=earlier)
    answer = await sample(run, problem, t, context, "answer")                            # line 11: y_t
    sampled = time.time()
    verdict, judge = await verifiers.grade(problem, answer.text, truncated(run, answer), run.engine, run.graders)  # line 11: r_t, f_t
    run.tokens += sum(len(s.token_ids) for s in (draft_sample, answer, judge) if s)
    return {
        "problem": problem.id, "bench": problem.bench, "method": run.args.method, "step": t,
        "restart": draft is not None, "context": context, "response": answer.text, "tail": tail(run, answer), "draft": draft,
        "prompt_tokens": answer.prompt_tokens, "completion_tokens": len(answer.token_ids),
        "draft_prompt_tokens": draft_sample.prompt_tokens if draft_sample else 0,
        "draft_tokens": len(draft_sample.token_ids) if draft_sample else 0,
        "judge_prompt_tokens": judge.prompt_tokens if judge else 0, "judge_tokens": len(judge.token_ids) if judge else 0,
        "finish_reason": answer.finish_reason, "truncated": truncated(run, answer), "reward": verdict.reward,
        "correct": verdict.correct, "feedback": verdict.feedback, "signature": verdict.signature, "fault": verdict.fault,
        "seed": engine.request_seed(run.args.seed, problem.id, t, "answer"), "sample_seconds": round(sampled - seconds, 3),
        "verify_seconds": round(time.time() - sampled, 3), "elapsed_seconds": round(elapsed(run), 3)}


async def sample(run, problem, t, messages, kind):
    """y ~ policy(. | messages) with the seed of (run seed, problem, step, kind); earlier steps go first in the queue."""
    s = run.settings
    return await run.engine.sample(run.engine.encode(messages), seed=engine.request_seed(run.args.seed, problem.id, t, kind),
                                   max_tokens=s.max_tokens, temperature=s.temperature, top_p=s.top_p, priority=t)


def tail(run, sample):
    """tail_L (section 2.2): the text of the last L tokens of a longer response; None where the response is shown whole."""
    if len(sample.token_ids) <= run.args.tail:
        return None
    return run.engine.tokenizer.decode(sample.token_ids[-run.args.tail:], skip_special_tokens=True)


def shown(record):
    """What the next context shows of a graded response."""
    return record["response"] if record["tail"] is None else record["tail"]


def truncated(run, sample):
    return sample.finish_reason == "length" or len(sample.token_ids) >= run.settings.max_tokens


def cplus(records):
    """C+ (Algorithm 1, lines 3 and 12): those of `records` whose contexts it holds.

    `records`: in order of problem and step, whatever was finished first. A response that equals, to the letter, that of a
    successful record of a smaller step is left out.
    """
    seen, kept = set(), []
    for record in records:
        said = (record["problem"], record["response"])
        if record["reward"] == 1 and not record["truncated"] and said not in seen:
            seen.add(said)
            kept.append(record)
    return kept


# ---------------------------------------------------------------------------------------------------------------------
# The run around it


async def explore(run, problems):
    """All segments of all problems, the earliest steps first, at most as many in flight as keep the engine full.

    Returns whether the GPU-hour cap (section 3.1) ended the run.
    """
    places = asyncio.Semaphore(2 * run.engine.slots)  # half of them may be with the graders

    async def admitted(problem, steps):
        async with places:
            try:
                await explore_segment(run, problem, steps)
            except engine.ContextTooLong as error:
                if problem.id not in run.failed:
                    run.failed[problem.id] = str(error)
                    tqdm.write(f"Problem {problem.id} cannot go on: {error}", file=sys.stderr)

    cut = segments(run.args.method, run.args.calls, run.args.restart)
    tasks = [asyncio.ensure_future(admitted(problem, steps)) for steps in cut for problem in problems
             if any((problem.id, t) not in run.done for t in steps)]
    cap = run.args.gpu_hours * 3600 / run.engine.gpus - elapsed(run) if run.args.gpu_hours else None
    try:
        if not tasks:
            return False
        finished, unfinished = await asyncio.wait(tasks, timeout=cap and max(cap, 0), return_when=asyncio.FIRST_EXCEPTION)
        for task in finished:
            task.result()
        return bool(unfinished)
    finally:  # after the cap, an error or Ctrl-C
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def elapsed(run):
    """Seconds that the run has taken so far: all its sessions, start-ups included."""
    return run.clock + run.engine.startup_seconds + time.time() - run.begin


def show_progress(run):
    solved = {problem for (problem, _), record in run.done.items() if record["correct"]} if run.bar.n % 50 == 0 else None
    run.bar.update()
    if solved is not None:
        problems = len({problem for problem, _ in run.done})
        run.bar.set_postfix_str(f"{len(solved) / problems:.1%} solved, {run.tokens / (time.time() - run.begin):,.0f} tokens/s")


async def main_async(args, settings, problems, records, journal):
    """Start the engine and the graders, explore, and end both. -> (run, capped)."""
    sampler = await engine.start(settings)
    run = Run(args, settings, sampler, verifiers.Graders(), journal, records,
              clock=max((r["elapsed_seconds"] for r in records.values()), default=0.0))
    run.bar = tqdm(total=len(problems) * args.calls, initial=len(records), unit="call", disable=None)
    try:
        return run, await explore(run, problems)
    finally:
        run.bar.close()
        run.graders.close()
        sampler.close()


def fingerprint(problem):
    """What must not change of a problem while a run goes on."""
    return hashlib.sha256(json.dumps(dataclasses.asdict(problem), default=list).encode()).hexdigest()[:16]


def begin(args, settings, problems):
    """Open the run's files, or those of the run that goes on. -> ({(problem id, step): record}, journal)."""
    lines, journal = runs.open_journal(os.path.join(args.out, "rollouts.jsonl"))
    flags = ("bench", "split", "data", "method", "memory", "calls", "restart", "tail", "seed", "limit", "gpu_hours")
    runs.begin(os.path.join(args.out, "explore.json"), {name: getattr(args, name) for name in flags} | dataclasses.asdict(settings),
               growable=("calls", "limit", "gpu_hours"), empty=not lines)
    path = os.path.join(args.out, "problems.json")
    marks = {problem.id: fingerprint(problem) for problem in problems}
    if lines and os.path.exists(path):
        with open(path) as file:
            known = json.load(file)
        for problem in problems:
            if known.get(problem.id, marks[problem.id]) != marks[problem.id]:
                raise data.BadInput(f"problem {problem.id} is another one than in the run that {args.out} holds: restore the "
                                    "file of problems, or name another folder with --out.")
        marks = {**known, **marks}
    runs.write_json(path, marks)
    found = {(r["problem"], r["step"]): r for r in lines}
    if len(found) < len(lines):
        raise data.BadInput(f"{journal.name} holds a problem's step twice: it was edited; name another folder with --out.")
    return {(p.id, t): found[p.id, t] for p in problems for t in range(1, args.calls + 1) if (p.id, t) in found}, journal


def write_cplus(path, args, settings, problems, records):
    """cplus.jsonl, whole or not at all. -> the records in it."""
    openings = {p.id: prompts.opening(p, settings.family) for p in problems}
    decoding = {"temperature": settings.temperature, "top_p": settings.top_p, "max_tokens": settings.max_tokens}
    kept = cplus(records[p.id, t] for p in problems for t in range(1, args.calls + 1) if (p.id, t) in records)
    with open(path + ".part", "w") as file:
        for r in kept:
            file.write(json.dumps({
                "problem": r["problem"], "bench": r["bench"], "model": settings.model, "family": settings.family, "decoding": decoding,
                "opening": openings[r["problem"]], "context": r["context"], "response": r["response"], "step": r["step"]}) + "\n")
    os.replace(path + ".part", path)
    return kept


def restart_interval(text):
    return text if text == "never" else engine.positive_int(text)


def main(argv=None):
    parser = argparse.ArgumentParser(description="Explore problems with a per-problem memory (Algorithm 1, lines 1-12).")
    parser.add_argument("--bench", required=True, help="math500, lcb, mbpp, sciknoweval, arithmetic, or a FILE.jsonl of your own")
    parser.add_argument("--split", choices=["test", "train"], default="test", help="train: the training sets of App. E.1")
    parser.add_argument("--data", help="local copy of the bench in its upstream format")
    parser.add_argument("--method", choices=["leaf", "random"], default="leaf")
    parser.add_argument("--memory", choices=["leaf", "no-response", "no-feedback", "last3"], default="leaf",
                        help="what a carry step's context holds (App. G.2)")
    parser.add_argument("--calls", type=engine.positive_int, help="K, verifier calls a problem (default: 24; train: 20)")
    parser.add_argument("--restart", type=restart_interval, default=5, metavar="M|never", help="the memory is reset every M steps")
    parser.add_argument("--tail", type=engine.positive_int, default=2000, help="L, tokens of a longer response that the memory keeps")
    parser.add_argument("--seed", type=engine.positive_int, default=1, help="run seed")
    parser.add_argument("--limit", type=engine.positive_int, help="only the first N problems")
    parser.add_argument("--gpu-hours", type=float, help="stop after so many (default: 5; train: no cap)")
    parser.add_argument("--out", default="out", help="folder of the run")
    engine.add_arguments(parser)
    args = parser.parse_args(argv)
    args.calls = args.calls or (20 if args.split == "train" else 24)
    args.gpu_hours = args.gpu_hours or (None if args.split == "train" else 5.0)
    settings = engine.settings(args, args.bench)
    problems = data.load(args.bench, args.split, args.data, args.limit)
    with runs.hold(args.out):
        records, journal = begin(args, settings, problems)
        split = f" {args.split}" if args.bench in data.BENCHES else ""
        print(f"explore: {args.bench}{split}, {len(problems)} problems, {args.calls} calls each, {args.method}; {engine.describe(settings)}", flush=True)
        if records:
            print(f"{len(records)} answers are there already; the run goes on.", flush=True)
        with journal:
            try:
                run, capped = asyncio.run(main_async(args, settings, problems, records, journal))
            except KeyboardInterrupt:
                print(f"\nStopped. Every graded answer is in {journal.name}; the same command goes on.", file=sys.stderr)
                sys.exit(130)
        kept = write_cplus(os.path.join(args.out, "cplus.jsonl"), args, settings, problems, run.done)
        finish(run, problems, kept, capped)


def finish(run, problems, kept, capped):
    """Results into explore.json and onto the screen."""
    attempts = {p.id: {t: run.done[p.id, t] for t in range(1, run.args.calls + 1) if (p.id, t) in run.done} for p in problems}
    last = measures.complete_steps(attempts)
    faults = sum(r["fault"] is not None for r in run.done.values())
    result = {"problems": len(problems), "answers": len(run.done), "startup_seconds": run.engine.startup_seconds,
              "wall_seconds": elapsed(run) - run.engine.startup_seconds, "gpus": run.engine.gpus, "parameters": run.engine.parameters, "faults": faults,
              "complete_steps": last, "capped": capped, "failed": run.failed}
    path = os.path.join(run.args.out, "explore.json")
    with open(path) as file:
        runs.write_json(path, json.load(file) | {"result": result})
    if capped:
        print(f"The cap of {run.args.gpu_hours:g} GPU hours ended the run; all problems have {last} calls.")
    if faults:
        print(f"The verifier itself failed on {faults} answers, which count as wrong (field \"fault\").")
    if last:
        print(f"pass@{last} {measures.pass_curve(attempts, last)[-1]:.1%}, mean accuracy {measures.mean(r['correct'] for r in run.done.values()):.1%}, "
              f"{len(run.done)} answers in {elapsed(run):.0f} s")
    print(f"C+ holds {len(kept)} contexts of {len({r['problem'] for r in kept})} problems: {os.path.join(run.args.out, 'cplus.jsonl')}")
    if run.failed:
        raise data.BadInput(f"{len(run.failed)} of {len(problems)} problems have contexts longer than the model's window (named above): "
                            "use a longer window or a smaller --tail; the same command goes on with them.")


if __name__ == "__main__":
    data.exit_with_sentence(main)
