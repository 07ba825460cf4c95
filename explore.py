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
import math
import os
import sys
import time

from tqdm import tqdm

import data
import distill
import engine
import measures
import memory
import prompts
import runs
import training
import verifiers


@dataclasses.dataclass
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
    trainer: training.Trainer = None               # with --update-every
    tokens: int = 0                                # sampled in this session
    begin: float = dataclasses.field(default_factory=time.time)
    failed: dict = dataclasses.field(default_factory=dict)  # problem id -> why it cannot go on


# ---------------------------------------------------------------------------------------------------------------------
# Algorithm 1


def segments(method, calls, restart):
    """The steps 1..K cut where the memory is reset: [[1..M], [M+1..2M], ...]; random sampling has no memory at all."""
    every = 1 if method == "random" else calls if restart == "never" else restart
    return [range(first, min(first + every, calls + 1)) for first in range(1, calls + 1, every)]


async def explore_segment(run, problem, steps):
    """Lines 4-12 for the steps of one segment of one problem. Errors: engine.ContextTooLong."""
    rounds = []  # the graded answers since the restart
    for t in steps:
        if (problem.id, t) not in run.done:
            run.done[problem.id, t] = record = await explore_step(run, problem, t, rounds)
            runs.append(run.journal, record)
            show_progress(run)
        rounds.append(run.done[problem.id, t])


async def explore_step(run, problem, t, rounds):
    """One verifier call: make the context c_t, sample y_t, grade it. -> the record of rollouts.jsonl."""
    args, family, begin = run.args, run.settings.family, time.time()
    plain, draft, summary = opening(args, family, problem), None, None
    if args.method == "random":
        context = plain
    elif not rounds:                                                                     # line 5: restart
        draft = await sample(run, problem, t, plain, "draft")                            # line 6
        last = {"context": plain, "response": draft.text, "completion_tokens": len(draft.token_ids),
                "tail": memory.shortened(problem, draft, args.compress, args.tail, run.engine.tokenizer)}
        summary = await summarize(run, problem, t, last)
        context = prompts.restart(problem, family, shown(last, summary))                 # line 7
    elif args.memory == "no-response":
        context = prompts.carry_without_response(problem, family, rounds[-1]["reward"], rounds[-1]["feedback"])
    elif args.memory == "no-feedback":
        context = prompts.restart(problem, family, shown(rounds[-1]))
    elif args.memory == "last3":
        *earlier, last = [(shown(r), r["reward"], r["feedback"]) for r in rounds[-3:]]
        context = prompts.carry(problem, family, *last, earlier=earlier)
    else:                                                                                # lines 9 and 10
        last = rounds[-1]  # the memory m
        summary = await summarize(run, problem, t, last)
        context = prompts.carry(problem, family, shown(last, summary), last["reward"], last["feedback"])
    context = asked(args, context)
    answer = await sample(run, problem, t, context, "answer")                            # line 11: y_t
    sampled = time.time()
    truncated = answer.finish_reason == "length" or len(answer.token_ids) >= run.settings.max_tokens
    verdict, judge = await verifiers.grade(problem, answer.text, truncated, run.engine, run.graders)  # r_t, f_t
    run.tokens += sum(len(s.token_ids) for s in (draft, summary, answer, judge) if s)

    def cost(kind, sample):
        return {f"{kind}prompt_tokens": sample.prompt_tokens if sample else 0,
                f"{kind or 'completion_'}tokens": len(sample.token_ids) if sample else 0}
    return {
        "problem": problem.id, "bench": problem.bench, "method": args.method, "step": t,
        "restart": draft is not None, "updates": run.trainer.done if run.trainer else 0, "context": context,
        "response": answer.text,
        "tail": memory.shortened(problem, answer, args.compress, args.tail, run.engine.tokenizer),
        "draft": draft and draft.text, "summary": summary and summary.text,
        **cost("", answer), **cost("draft_", draft), **cost("summary_", summary), **cost("judge_", judge),
        "finish_reason": answer.finish_reason, "truncated": truncated,
        **dataclasses.asdict(verdict),  # reward, correct, feedback, signature, fault
        "seed": engine.request_seed(args.seed, problem.id, t, "answer"),
        "sample_seconds": round(sampled - begin, 3), "verify_seconds": round(time.time() - sampled, 3),
        "elapsed_seconds": round(elapsed(run), 3)}


async def sample(run, problem, t, messages, kind, max_tokens=None):
    """y ~ policy(. | messages) with the seed of (run seed, problem, step, kind); earlier steps first in the queue."""
    s = run.settings
    return await run.engine.sample(
        run.engine.encode(messages), seed=engine.request_seed(run.args.seed, problem.id, t, kind),
        max_tokens=max_tokens or s.max_tokens, temperature=s.temperature, top_p=s.top_p,
        adapter=run.trainer and run.trainer.adapter(), priority=t)


def opening(args, family, problem):
    """The plain prompt x of this run."""
    return asked(args, prompts.opening(problem, family))


def asked(args, messages):
    """`messages`; with --compress block, each user turn asks for a summary block."""
    return prompts.ask_for_block(messages, args.tail // 4) if args.compress == "block" else messages


def shown(record, summary=None):
    """What the next context shows of a response; `summary`: that of `summarize`."""
    tail = summary.text if summary else record["tail"]
    return record["response"] if tail is None else tail


async def summarize(run, problem, t, record):
    """--compress summary: the model's own summary of a response of more than L tokens, a further turn of the dialogue
    that it came from. -> Sample, or None where the response is shown as it is."""
    if run.args.compress != "summary" or record["completion_tokens"] <= run.args.tail:
        return None
    half = run.args.tail // 2  # 1,000 tokens in the paper
    dialogue = [*record["context"], prompts.assistant(record["response"]),
                prompts.user(prompts.fill(prompts.SUMMARIZE, tokens=str(half)))]
    return await sample(run, problem, t, dialogue, "summary", max_tokens=half)


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
    if run.trainer:
        work = [step_by_step(run, problems, cut, admitted)]
    else:
        work = [admitted(problem, steps) for steps in cut for problem in problems
                if any((problem.id, t) not in run.done for t in steps)]
    cap = run.args.gpu_hours and max(0, run.args.gpu_hours * 3600 / run.engine.gpus - elapsed(run))
    return await engine.side_by_side(work, cap)


async def step_by_step(run, problems, cut, admitted):
    """Exploration with an update after every N steps (App. G.3): the answers of a step depend on those before it."""
    over = run.trainer.done * run.args.update_every  # up to this step no answer may come from the updated policy
    run.failed |= {p.id: "it was left before the newest update" for p in problems for t in range(1, over + 1)
                   if (p.id, t) not in run.done}
    for steps in cut:
        for t in range(max(steps.start, over + 1), steps.stop):
            # what came before t in its segment is done: these add step t alone
            await engine.side_by_side([admitted(problem, range(steps.start, t + 1)) for problem in problems
                                       if t == steps.start or (problem.id, t - 1) in run.done])
            number, rest = divmod(t, run.args.update_every)
            if rest == 0:
                os.fsync(run.journal.fileno())  # no checkpoint may outlive the answers that it stands on
                so_far = [line for line in cplus_lines(run, problems) if line["step"] <= t]  # a resumed run has more
                await distill.train_on_all(run.trainer, number, so_far)


def elapsed(run):
    """Seconds that the run has taken so far: all its sessions, start-ups included."""
    return run.clock + run.engine.startup_seconds + time.time() - run.begin


def show_progress(run):
    run.bar.update()
    if run.bar.n % 50 == 1:
        solved = len({problem for (problem, _), record in run.done.items() if record["correct"]})
        share, rate = solved / len({problem for problem, _ in run.done}), run.tokens / (time.time() - run.begin)
        run.bar.set_postfix_str(f"{share:.1%} solved, {rate:,.0f} tokens/s")


async def main_async(args, settings, problems, records, journal):
    """Start the engine and the graders, explore, and end both. -> (run, capped)."""
    sampler = await engine.start(settings, adapters=bool(args.update_every))
    run = Run(args, settings, sampler, verifiers.Graders(), journal, records,
              clock=max((r["elapsed_seconds"] for r in records.values()), default=0.0))
    run.bar = tqdm(total=len(problems) * args.calls, initial=len(records), unit="call", disable=None)
    try:
        if args.update_every:
            run.trainer = start_trainer(run, problems)
        return run, await explore(run, problems)
    finally:
        run.bar.close()
        run.graders.close()
        sampler.close()


def start_trainer(run, problems):
    """What --update-every trains with: distill.py's own, in OUT/updates."""
    folder = os.path.join(run.args.out, "updates")
    adapters = os.path.join(folder, "adapter")
    os.makedirs(folder, exist_ok=True)
    done, steps = training.newest_step(adapters), max((step for _, step in run.done), default=0)
    if not max((r["updates"] for r in run.done.values()), default=0) <= done <= steps // run.args.update_every:
        raise data.BadInput(f"{adapters} holds update {done}, which is not that of rollouts.jsonl: one of them is of "
                            "another run; name another folder with --out.")
    openings, journals = [opening(run.args, run.settings.family, p) for p in problems], training.go_on(folder, done)
    return training.start_trainer(run.args, run.settings, run.engine, openings, folder, done, journals)


def begin(args, settings, problems):
    """Open the run's files, or those of the run that goes on. -> ({(problem id, step): record}, journal)."""
    records, journal = runs.open_journal(os.path.join(args.out, "rollouts.jsonl"))
    flags = ("bench", "split", "data", "method", "memory", "compress", "calls", "restart", "tail", "seed", "limit",
             "gpu_hours", "update_every")
    kept, growable = {name: getattr(args, name) for name in flags}, ("calls", "limit", "gpu_hours")
    if args.update_every:  # another problem would have needed the adapters of the steps that are over
        kept |= {"lr": args.lr, "tau": "inf" if args.tau == math.inf else args.tau, "divergence": args.divergence}
        growable = ("calls", "gpu_hours")
    runs.begin(os.path.join(args.out, "explore.json"), kept | dataclasses.asdict(settings), growable, not records)
    runs.keep_problems(args.out, problems, empty=not records)
    done = {(r["problem"], r["step"]): r for r in records}
    if len(done) < len(records):
        raise data.BadInput(f"{journal.name} holds a problem's step twice: it was edited; name another folder with "
                            "--out.")
    return done, journal


def cplus_lines(run, problems):
    """The lines of cplus.jsonl."""
    steps, s = range(1, run.args.calls + 1), run.settings
    decoding = {"temperature": s.temperature, "top_p": s.top_p, "max_tokens": s.max_tokens}
    openings = {p.id: opening(run.args, s.family, p) for p in problems}
    return [{"problem": r["problem"], "bench": r["bench"], "model": s.model, "family": s.family, "decoding": decoding,
             "opening": openings[r["problem"]], "context": r["context"], "response": r["response"], "step": r["step"]}
            for r in cplus(run.done[p.id, t] for p in problems for t in steps if (p.id, t) in run.done)]


def finish(run, problems, kept, capped):
    """Results into explore.json and onto the screen."""
    attempts = {p.id: {} for p in problems} | measures.by_problem(run.done.values())  # some may have no answer yet
    last = measures.complete_steps(attempts)
    faults = sum(r["fault"] is not None for r in run.done.values())
    result = {"problems": len(problems), "answers": len(run.done), "startup_seconds": run.engine.startup_seconds,
              "wall_seconds": elapsed(run) - run.engine.startup_seconds, "gpus": run.engine.gpus,
              "parameters": run.engine.parameters, "faults": faults, "complete_steps": last, "capped": capped,
              "failed": run.failed}
    path = os.path.join(run.args.out, "explore.json")
    runs.write_json(path, runs.read_json(path) | {"result": result})
    if capped:
        print(f"The cap of {run.args.gpu_hours:g} GPU hours ended the run; all problems have {last} calls.")
    if faults:
        print(f"The verifier itself failed on {faults} answers, which count as wrong (field \"fault\").")
    if last:
        passed, accuracy = measures.pass_curve(attempts, last), measures.per_answer_curve(attempts, last, "correct")
        print(f"pass@{last} {passed[-1]:.1%}, mean accuracy {accuracy[-1]:.1%}, "
              f"{len(run.done)} answers in {elapsed(run):.0f} s")
    print(f"C+ holds {len(kept)} contexts of {len({r['problem'] for r in kept})} problems: "
          f"{os.path.join(run.args.out, 'cplus.jsonl')}")
    if run.failed:
        raise data.BadInput(
            f"{len(run.failed)} of {len(problems)} problems have contexts longer than the model's window (explore.json "
            "names them), and lack calls: use a longer window or a smaller --tail, in another --out.")


def check(args, parser):
    """BadInput for flags that do not go together."""
    if args.compress != "tail" and args.memory != "leaf":
        raise data.BadInput("--compress and --memory are two ablations of one thing, the memory: give one of them.")
    if args.method == "random" and (args.compress != "tail" or args.memory != "leaf" or args.update_every):
        raise data.BadInput("--memory, --compress and --update-every change LEAF: leave out --method random.")
    if args.compress not in ("tail", "none") and args.tail < 4:
        raise data.BadInput(f"--compress {args.compress} shows a half or a quarter of --tail tokens: give 4 or more.")
    changed = [f"--{n.replace('_', '-')}" for n in ("lr", "tau", "divergence", "micro_tokens", "grad_checkpoint_every")
               if getattr(args, n) != parser.get_default(n)]
    if changed and not args.update_every:
        raise data.BadInput(f"{changed[0]} is for updates between the steps: add --update-every N, or give it to "
                            "distill.py.")


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
    parser.add_argument("--calls", type=engine.positive_int, help="K, calls a problem (default: 24; train: 20)")
    parser.add_argument("--restart", default=5, metavar="M|never", help="the memory is reset every M steps",
                        type=lambda text: text if text == "never" else engine.positive_int(text))
    parser.add_argument("--tail", type=engine.positive_int, default=2000,
                        help="L, tokens of a longer response that the memory keeps")
    parser.add_argument("--seed", type=engine.positive_int, default=1, help="run seed")
    parser.add_argument("--limit", type=engine.positive_int, help="only the first N problems")
    parser.add_argument("--gpu-hours", type=distill.above_zero, help="stop after so many (default: 5; train: no cap)")
    parser.add_argument("--out", default="out", help="folder of the run")
    engine.add_arguments(parser)
    group = parser.add_argument_group("updates between the steps (App. G.3)")
    group.add_argument("--update-every", type=engine.positive_int, metavar="N",
                       help="update the policy after every N steps")
    distill.add_arguments(group, lr=1e-6)
    args = parser.parse_args(argv)
    check(args, parser)
    args.calls = args.calls or (20 if args.split == "train" else 24)
    args.gpu_hours = args.gpu_hours or (None if args.split == "train" else 5.0)
    settings = engine.settings(args, args.bench, gpu_memory=0.4 if args.update_every else 0.9)
    if args.update_every:
        args.traces = "success"
        distill.settle(args, settings, args.bench)
    problems = data.load(args.bench, args.split, args.data, args.limit)
    with runs.hold(args.out):
        records, journal = begin(args, settings, problems)
        split = f" {args.split}" if args.bench in data.BENCHES else ""
        print(f"explore: {args.bench}{split}, {len(problems)} problems, {args.calls} calls each, {args.method}; "
              f"{engine.describe(settings)}", flush=True)
        if records:
            print(f"{len(records)} answers are there already; the run goes on.", flush=True)
        with journal:
            try:
                run, capped = asyncio.run(main_async(args, settings, problems, records, journal))
            except KeyboardInterrupt:
                print(f"\nStopped. Every graded answer is in {journal.name}; the same command goes on.",
                      file=sys.stderr)
                sys.exit(130)
        kept = cplus_lines(run, problems)
        cplus_text = "".join(json.dumps(line) + "\n" for line in kept)
        runs.write_bytes(os.path.join(args.out, "cplus.jsonl"), cplus_text.encode())
        finish(run, problems, kept, capped)


if __name__ == "__main__":
    data.exit_with_sentence(main)
