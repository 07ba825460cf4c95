"""What an H200 makes of this: exploration, update and loss at real sizes, in less than half an hour, in one command.

    python tests/bench_gpu.py [--out bench_gpu.json]      # both models of the paper, from the Hub or its cache
    python tests/bench_gpu.py --models FOLDER --toy       # the same at a toy's size, on any machine

Each part is a process of its own, so that it has the whole GPU, and one that fails or takes too long leaves the others;
it is printed as it ends, and the file of --out holds all parts so far.

explore  tokens/s of an exploration (problems side by side, M = 5), and of all its prompts at once: the engine alone.
update   seconds and GiB of one update, for each attention that is there and for each recomputation.
loss     seconds and GiB of ours, the plain form and Liger's, at the model's vocabulary (tests/bench_loss.py).

Last it extrapolates to the paper's tables: hours of exploration are Table 1's tokens over the tokens/s measured here,
prompts included; hours of the update are those of 3 training sets, 20 steps of 128 responses of LENGTH tokens each, by
the fastest update and the engine's tokens/s. Other lengths, other hours: they are a first look and no measurement.
"""
import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

import bench_loss
import bench_update
import benches
import distill
import engines
import explore
import policy as policies
import prompts
import verifiers
from common import attention, journal, rollouts
from common.clock import Clock
from common.errors import exit_with_sentence
from common.flags import UpdateArgs

import torch

# Table 1, LEAF: GPU hours of the exploration and tokens processed, all benches; Table 2: GPU hours of the update.
PAPER = {"Qwen/Qwen3-8B": (1.47, 1043e6, 2.12), "allenai/Olmo-3-7B-Instruct": (6.43, 1275e6, 4.11)}
VOCABULARIES = {"Qwen/Qwen3-8B": 151936, "allenai/Olmo-3-7B-Instruct": 100278}
LENGTH, STEPS, RESPONSES = 1500, 3 * 20, 128  # of an update's responses, in all training sets, of a step
SECONDS = 420                                 # of a part, at most


def settings_of(args):
    kind = ("hf", "float32") if args.toy else ("vllm", "bfloat16")
    limit = 32 if args.toy else 2048
    return engines.Settings(args.models[0], "qwen3", *kind, 1.0, 1.0, limit, 0.9, None, 1, 1)


# ---------------------------------------------------------------------------------------------------------------------
# The parts: -> numbers


async def measure_explore(args, folder):
    settings = settings_of(args)
    problems = benches.load("arithmetic", "train", limit=4 if args.toy else 512)
    sampler, graders = await engines.start(settings, folder=folder), verifiers.Graders()
    try:
        run_args = explore.ExploreArgs("arithmetic", "train", calls=5 if args.toy else 10, gpu_hours=None)
        _, file = journal.open_journal(os.path.join(folder, "rollouts.jsonl"))
        run = explore.Run(run_args, settings, sampler, graders, rollouts.Lines(file, graders), {}, Clock("sampling"))
        run.bar = explore.tqdm(disable=True)
        begin = time.perf_counter()
        await explore.explore(run, problems)
        explored = time.perf_counter() - begin
        contexts = [record["context"] for record in run.records.values()]
        contexts += [prompts.opening(x, settings.family) for x in problems] * (run_args.calls // 5)
        begin = time.perf_counter()
        samples = await asyncio.gather(*(
            sampler.sample(sampler.encode(context), seed=number, max_tokens=settings.max_tokens, temperature=1.0, top_p=1.0)
            for number, context in enumerate(contexts)))
        at_once = time.perf_counter() - begin
    finally:
        graders.close()
        sampler.close()
    counts = {name: sum(record[name] for record in run.records.values())
              for name in ("prompt_tokens", "completion_tokens", "draft_prompt_tokens", "draft_tokens")}
    sampled = counts["completion_tokens"] + counts["draft_tokens"]
    alone = sum(len(y.token_ids) for y in samples) / at_once
    return {"tokens/s": sampled / explored, "engine alone, tokens/s": alone, "ratio": sampled / explored / alone,
            "with prompts, tokens/s": sum(counts.values()) / explored}


def measure_update(args, kernel, every):
    device = torch.device("cpu" if args.toy else "cuda")
    settings = settings_of(args)
    policies.attention_kernel = lambda *_: kernel
    policy = policies.load_policy(settings, None, 1, every, device)
    count, length = (3, 12) if args.toy else (16, LENGTH)
    items = bench_update.rows(count, policy.head.shape[0], length)
    optimizer = policies.adam(policy, 1e-5)
    update_args = UpdateArgs(1e-5, 1e-3, "reverse_kl", 64 if args.toy else 16384, every)
    seconds = []
    for _ in range(2):  # the first one compiles and prepares
        begin = time.perf_counter()
        distill.update(policy, optimizer, items, update_args)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else bench_loss.resident("VmHWM")
    return {"seconds": min(seconds), "seconds a response": min(seconds) / count, "GiB": peak / 2**30}


def measure_loss(args, form, vocabulary):
    sizes = argparse.Namespace(vocab=600 if args.toy else vocabulary, width=32 if args.toy else 4096, kind="reverse_kl",
                               device="cpu" if args.toy else "cuda", repeats=2)
    return bench_loss.measure(form, 16 if args.toy else 2048, sizes)


def parts_of(args):
    """[(name, flags of the part)]: for each model its exploration, updates and losses."""
    kernels = ["sdpa"] if args.toy else [*({attention.attention_kernel(torch.bfloat16, torch.device("cuda"))}
                                           | {"varlen", "sdpa"})]
    found = []
    for model in args.models:
        found.append((f"{model} explore", ["--models", model, "--part", "explore"]))
        for kernel in sorted(kernels, reverse=True):
            found += [(f"{model} update {kernel} {every}", ["--models", model, "--part", "update", kernel, str(every)])
                      for every in ((0,) if args.toy else (0, 2, 1))]
        vocabulary = VOCABULARIES.get(model, 600)
        found += [(f"{model} loss {form}", ["--models", model, "--part", "loss", form, str(vocabulary)])
                  for form in ("ours", "plain", "liger")]
    return found


def run_part(args):
    """Measure the part of --part in this process; its numbers are the last line of standard output."""
    kind, *rest = args.part
    with tempfile.TemporaryDirectory() as folder:
        if kind == "explore":
            numbers = asyncio.run(measure_explore(args, folder))
        elif kind == "update":
            numbers = measure_update(args, rest[0], int(rest[1]))
        else:
            return measure_loss(args, rest[0], int(rest[1]))  # which prints them itself
    print(json.dumps(numbers), flush=True)


# ---------------------------------------------------------------------------------------------------------------------
# All of them


def in_a_process(flags, toy):
    """-> the numbers of a part; RuntimeError says in one line why there are none."""
    command = [sys.executable, os.path.abspath(__file__), *flags, *(["--toy"] if toy else [])]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"more than {SECONDS} s") from None
    lines = process.stdout.strip().splitlines()
    if process.returncode or not lines:
        raise RuntimeError((process.stderr.strip().splitlines() or ["no output"])[-1][:200])
    return json.loads(lines[-1])


def hours(model, results):
    """GPU hours at the paper's sizes by what was measured of `model`: {what: (ours, the paper's or None)}."""
    explored_hours, tokens, updated_hours = PAPER.get(model, (None, 1e9, None))
    found = {}
    explored = results.get(f"{model} explore")
    if explored:
        found["exploration"] = tokens / explored["with prompts, tokens/s"] / 3600, explored_hours
    updates = [numbers["seconds a response"] for name, numbers in results.items() if name.startswith(f"{model} update")]
    if explored and updates:
        seconds = min(updates) + LENGTH / explored["engine alone, tokens/s"]
        found["update"] = STEPS * RESPONSES * seconds / 3600, updated_hours
    return found


def main(argv=None):
    parser = argparse.ArgumentParser(description="Exploration, update and loss on a GPU, at the paper's sizes.")
    parser.add_argument("--models", nargs="+", default=list(PAPER), help="Hub ids or folders")
    parser.add_argument("--out", default="bench_gpu.json", help="all numbers, as JSON")
    parser.add_argument("--toy", action="store_true", help="a toy's size, on the CPU")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.part:
        return run_part(args)
    results = {}
    for name, flags in parts_of(args):
        begin = time.time()
        try:
            results[name] = in_a_process(flags, args.toy)
            text = ", ".join(f"{key} {value:.4g}" for key, value in results[name].items())
        except RuntimeError as error:
            text = f"failed: {error}"
        print(f"{name} ({time.time() - begin:.0f} s): {text}", flush=True)
        journal.write_json(args.out, results)
    for model in args.models:
        for what, (ours, paper) in hours(model, results).items():
            print(f"{model}: {what} {ours:.2f} GPU hours" + (f" (the paper: {paper})" if paper else ""))


if __name__ == "__main__":
    exit_with_sentence(main)
