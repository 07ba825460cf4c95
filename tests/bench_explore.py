"""Exploration against its own engine, and independent segments against the two slower schedules, each in one run.

    python tests/bench_explore.py                            # the schedules in a simulated engine, at the paper's sizes
    python tests/bench_explore.py out/tiny/model             # and the tiny model on the transformers engine
    python tests/bench_explore.py out/tiny/model --engine vllm

With a model: LEAF on 32 additions, K = 24, M = 5, once per schedule, and then every prompt of that exploration,
submitted all at once with its own seed: the tokens per second that the engine gives when nothing depends on anything.

Lock-step: every problem waits for the slowest of a step. Chain: a problem's steps one after another, no barrier between
problems. Segments: explore.py, the five segments of a problem side by side.

The simulated engine is a model, not a measurement (constants below): a decoding step takes 4.5 ms and 22 us more for
each running sequence, a prompt 40 us for each of its tokens that no cache holds, lengths are log-normal, the verifier
takes no time.
"""
import argparse
import asyncio
import heapq
import math
import os
import random
import sys
import tempfile
import time

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

import benches
import engines
import explore
import verifiers
from common import journal
from common.errors import exit_with_sentence
from engines.base import request_seed

STEP, PER_SEQUENCE, PER_PROMPT_TOKEN, SLOTS = 4.5e-3, 22e-6, 40e-6, 512
SIZES = {  # problems, mean and sigma of the log-normal length, response limit, prompt and context tokens
    "MATH-500": (500, 1000, 0.8, 8192, 150, 1200), "LCB": (131, 1800, 0.9, 8192, 600, 2400),
    "MBPP+": (378, 500, 0.8, 8192, 250, 750), "SciKnowEval": (400, 1000, 0.8, 8192, 300, 1300)}
CALLS, RESTART = 24, 5


def chains(schedule, problems):
    """[[(problem, step, is draft), ...]]: what runs one after another; lock-step is dealt with by `simulate`."""
    cut = explore.segments(CALLS, RESTART)
    made = {(p, steps.start): [(p, steps.start, True)] + [(p, t, False) for t in steps]
            for steps in cut for p in range(problems)}
    if schedule == "segments":
        return list(made.values())  # the earliest segments of all problems first
    return [[request for steps in cut for request in made[p, steps.start]] for p in range(problems)]


def simulate(schedule, problems, mean, sigma, limit, prompt, context):
    """Seconds of one exploration in the simulated engine."""
    rng = random.Random(1)
    mu = math.log(mean) - sigma**2 / 2
    lengths = {(p, t, draft): min(limit, max(1, int(rng.lognormvariate(mu, sigma))))
               for p in range(problems) for t in range(1, CALLS + 1) for draft in (True, False)}
    waiting = chains(schedule, problems)[::-1]
    running, clock, steps = [], 0.0, 0  # running: (step at which it ends, order, what follows)
    order, held = 0, []

    def begin(chain):
        nonlocal clock, order
        request, *rest = chain
        clock += PER_PROMPT_TOKEN * (prompt if request[2] else context - prompt)
        order += 1
        heapq.heappush(running, (steps + lengths[request], order, request, rest))
    while waiting or running or held:
        while waiting and len(running) < SLOTS:
            begin(waiting.pop())
        if not running:  # lock-step: the slowest has come
            waiting, held = held[::-1], []
            continue
        end = running[0][0]
        clock += (end - steps) * (STEP + PER_SEQUENCE * len(running))
        steps = end
        while running and running[0][0] == end:
            _, _, request, rest = heapq.heappop(running)
            if rest and schedule == "lock-step" and not request[2]:
                held.append(rest)
            elif rest:
                begin(rest)
    return clock


def print_simulation():
    print(f"| simulated, {CALLS} calls, restart every {RESTART} | lock-step (s) | chain (s) | segments (s) "
          "| lock-step / segments | chain / segments |\n|---|---|---|---|---|---|")
    for name, size in SIZES.items():
        lock, chain, segments = (simulate(schedule, *size) for schedule in ("lock-step", "chain", "segments"))
        print(f"| {name} | {lock:,.0f} | {chain:,.0f} | {segments:,.0f} | {lock / segments:.2f} "
              f"| {chain / segments:.2f} |")


async def schedule_segments(run, problems):
    await explore.explore(run, problems)


async def schedule_chain(run, problems):
    async def chain(problem):
        for steps in explore.segments(CALLS, RESTART):
            await explore.explore_segment(run, problem, steps)
    await asyncio.gather(*map(chain, problems))


async def schedule_lock_step(run, problems):
    for steps in explore.segments(CALLS, RESTART):
        for t in steps:  # what came before t in its segment is done
            await asyncio.gather(*(explore.explore_segment(run, p, range(steps.start, t + 1)) for p in problems))


async def measure(settings, folder, problem_count):
    """Print the wall times of the schedules, and the tokens/s of an exploration against all its prompts at once."""
    problems = benches.load("arithmetic", "train", limit=problem_count)
    sampler, graders = await engines.start(settings, folder=folder), verifiers.Graders()
    args = explore.ExploreArgs("arithmetic", "train", calls=CALLS, restart=RESTART, gpu_hours=None)
    schedules = {"lock-step": schedule_lock_step, "chain": schedule_chain, "segments": schedule_segments}
    seconds, tokens = {}, {}
    try:
        for name in ("warm-up", *schedules):
            _, file = journal.open_journal(os.path.join(folder, f"{name}.jsonl"))
            run = explore.Run(args, settings, sampler, graders, file, {}, 0.0)
            run.bar = explore.tqdm(disable=True)
            begin = time.perf_counter()
            await schedules.get(name, schedule_segments)(run, problems)
            seconds[name], tokens[name] = time.perf_counter() - begin, run.tokens
        requests = []
        for (problem, t), record in run.records.items():
            if record["restart"]:
                opening = args.opening(settings.family, next(p for p in problems if p.id == problem))
                requests.append((opening, request_seed(1, problem, t, "draft")))
            requests.append((record["context"], record["seed"]))
        begin = time.perf_counter()
        samples = await asyncio.gather(*(
            sampler.sample(sampler.encode(messages), seed=seed, max_tokens=settings.max_tokens,
                           temperature=settings.temperature, top_p=settings.top_p) for messages, seed in requests))
        at_once = time.perf_counter() - begin
    finally:
        graders.close()
        sampler.close()
    print(f"\n| {settings.engine}, {len(problems)} problems | seconds | tokens | tokens/s | against segments |\n"
          "|---|---|---|---|---|")
    for name in schedules:
        print(f"| {name} | {seconds[name]:.1f} | {tokens[name]:,} | {tokens[name] / seconds[name]:,.0f} "
              f"| {seconds[name] / seconds['segments']:.2f} times the time |")
    count = sum(len(s.token_ids) for s in samples)
    speed = tokens["segments"] / seconds["segments"] / (count / at_once)
    print(f"| all {len(requests)} prompts at once | {at_once:.1f} | {count:,} | {count / at_once:,.0f} "
          f"| segments have {speed:.2f} of its tokens/s |")


def main():
    parser = argparse.ArgumentParser(description="Schedules of an exploration, simulated and on a tiny model.")
    parser.add_argument("model", nargs="?", help="folder of the tiny model (python tiny.py leaves OUT/model)")
    parser.add_argument("--engine", choices=["hf", "vllm"], default="hf")
    parser.add_argument("--problems", type=int, default=32)
    args = parser.parse_args()
    print_simulation()
    if args.model:
        settings = engines.Settings(args.model, "qwen3", args.engine, "float32", 1.0, 1.0, 64, 0.9, None, 1, 1)
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measure(settings, folder, args.problems))


if __name__ == "__main__":
    exit_with_sentence(main)
