"""Exploration against its own engine, and independent segments against the two slower schedules, each in one run.

    python tests/bench_explore.py                            # the schedules in a simulated engine, at the paper's sizes
    python tests/bench_explore.py out/tiny/model             # and the tiny model on the transformers engine
    python tests/bench_explore.py out/tiny/model --engine vllm

With a model: LEAF on 32 additions, K = 24, M = 5, once per schedule, and then every prompt of that exploration,
submitted all at once with its own seed: the tokens per second that the engine gives when nothing depends on anything.

Lock-step: every problem waits for the slowest of a step. Chain: a problem's steps one after another, no barrier between
problems. Segments: explore.py, the five segments of a problem side by side, early steps first. Longest first: the same,
but the segment that has more steps left goes first. It gains a hundredth, and brings all segments forward together: a
run that its cap on GPU hours ends then has few steps that all problems have, and pass@k ends at the last of those.

The simulated engine is a model, not a measurement (constants below): a decoding step takes 4.5 ms and 22 us more for
each running sequence, a prompt 40 us for each of its tokens that no cache holds, lengths are log-normal, the verifier
takes no time.
"""
import argparse
import asyncio
import heapq
import itertools
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
import prompts
import verifiers
from common import journal, rollouts
from common.clock import Clock
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
    if schedule in ("segments", "longest first"):
        return list(made.values())
    return [[request for steps in cut for request in made[p, steps.start]] for p in range(problems)]


def lengths_of(problems, mean, sigma, limit):
    """{(problem, step, is draft): tokens}"""
    rng = random.Random(1)
    mu = math.log(mean) - sigma**2 / 2
    return {(p, t, draft): min(limit, max(1, int(rng.lognormvariate(mu, sigma))))
            for p in range(problems) for t in range(1, CALLS + 1) for draft in (True, False)}


def simulate(schedule, problems, mean, sigma, limit, prompt, context):
    """One exploration in the simulated engine, all chains handed in at the beginning.

    Early steps go first, as in explore.py; of "longest first" the chain that has more left. -> {(problem, step): when
    its answer is there}, in seconds.
    """
    lengths = lengths_of(problems, mean, sigma, limit)
    waiting, running, held = [], [], []  # heaps of (priority, order, chain) and (step at which it ends, order, chain)
    order, clock, steps, ends = itertools.count(), 0.0, 0, {}

    def submit(chain):
        priority = -len(chain) if schedule == "longest first" else chain[0][1]
        heapq.heappush(waiting, (priority, next(order), chain))
    for chain in chains(schedule, problems):
        submit(chain)
    while waiting or running or held:
        while waiting and len(running) < SLOTS:
            _, _, chain = heapq.heappop(waiting)
            clock += PER_PROMPT_TOKEN * (prompt if chain[0][2] else context - prompt)
            heapq.heappush(running, (steps + lengths[chain[0]], next(order), chain))
        if not running:  # lock-step: the slowest has come
            while held:
                submit(held.pop())
            continue
        end = running[0][0]
        clock += (end - steps) * (STEP + PER_SEQUENCE * len(running))
        steps = end
        while running and running[0][0] == end:
            _, _, ((problem, t, is_draft), *rest) = heapq.heappop(running)
            if not is_draft:
                ends[problem, t] = clock
            if rest and schedule == "lock-step" and not is_draft:
                held.append(rest)
            elif rest:
                submit(rest)
    return ends


def least_seconds(problems, mean, sigma, limit, prompt, context):
    """What no schedule can beat: every token in a full batch, and all prompts."""
    lengths = lengths_of(problems, mean, sigma, limit)
    requests = [request for chain in chains("segments", problems) for request in chain]
    tokens = sum(lengths[request] for request in requests)
    read = sum(prompt if is_draft else context - prompt for *_, is_draft in requests)
    return tokens / SLOTS * (STEP + PER_SEQUENCE * SLOTS) + read * PER_PROMPT_TOKEN


def steps_of_all(ends, problems, seconds):
    """The last k such that all problems have the steps 1..k by then: what a run counts that its cap ends."""
    last = 0
    while all(ends.get((p, last + 1), math.inf) <= seconds for p in range(problems)):
        last += 1
    return last


def print_simulation():
    print(f"| simulated, {CALLS} calls, restart every {RESTART} | lock-step (s) | chain (s) | segments (s) "
          "| longest first (s) | no schedule below (s) | lock-step / segments | / longest first | / none below "
          "| steps of all problems after 3/4 of the time: segments | longest first |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|")
    for name, size in SIZES.items():
        ends = {schedule: simulate(schedule, *size) for schedule in ("lock-step", "chain", "segments", "longest first")}
        seconds = {schedule: max(times.values()) for schedule, times in ends.items()} | {"least": least_seconds(*size)}
        ratios = [seconds["lock-step"] / seconds[name] for name in ("segments", "longest first", "least")]
        counted = [steps_of_all(ends[name], size[0], 0.75 * seconds[name]) for name in ("segments", "longest first")]
        print(" | ".join([f"| {name}", *(f"{value:,.0f}" for value in seconds.values()),
                          *(f"{ratio:.2f}" for ratio in ratios), *map(str, counted)]) + " |")


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
            run = explore.Run(args, settings, sampler, graders, rollouts.Lines(file, graders), {}, Clock("sampling"))
            run.bar = explore.tqdm(disable=True)
            begin = time.perf_counter()
            await schedules.get(name, schedule_segments)(run, problems)
            seconds[name] = time.perf_counter() - begin
            tokens[name] = sum(r["completion_tokens"] + r["draft_tokens"] for r in run.records.values())
        requests = []
        for (problem, t), record in run.records.items():
            if record["restart"]:
                opening = prompts.opening(next(p for p in problems if p.id == problem), settings.family)
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
