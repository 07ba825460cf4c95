"""One update: operations and seconds, ours against one with a behaviour pass and all layers recomputed, in one run.

    python tests/bench_update.py [MODEL] [--threads 2] [--responses 8]

Ours: teacher forward, student forward and backward (--grad-checkpoint-every 0); the importance weights come out of the
student's own pass. The other: a behaviour pass over the student's rows besides, and every layer recomputed in the
backward pass (gradient checkpointing). Both get the same rows, packed without padding, the same chunked loss and a head
that sees response positions only: what differs are those two passes alone. A context is a prompt, an answer of the
response's length and a feedback turn. Operations are torch's own count (matrix products and attention);
--grad-checkpoint-every 2 and 4 are printed too. Without MODEL: a made-up model of 1 M parameters.
"""
import argparse
import os
import random
import sys
import tempfile
import time

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

import distill
import engines
from common.flags import UpdateArgs
from conftest import make_model
from engines.base import Sample
from policy import adam, load_policy

import torch
from torch.utils.flop_counter import FlopCounterMode


def rows(count, vocabulary, scale):
    """Responses of unlike length around `scale` tokens, prompts of a quarter of it, contexts with an earlier answer."""
    rng = random.Random(0)

    def ids(n):
        return [rng.randrange(vocabulary) for _ in range(n)]
    items = []
    for _ in range(count):
        prompt, response = ids(scale // 4), ids(int(scale * rng.uniform(0.5, 1.5)))
        context = prompt + ids(len(response)) + ids(scale // 8)
        sample = Sample(response, "", [-5.0] * len(response), "stop", len(prompt))
        items.append(distill.Row(prompt, context, sample))
    return items


def behaviour_pass(policy, items, budget):
    """The paper's separate pass for the log-probabilities of the sampled tokens, in chunks of the loss's size."""
    for batch in distill.micro_batches(items, budget):
        with torch.no_grad():
            hidden = policy.hidden_states([i.x + i.y.token_ids for i in batch],
                                          [len(i.y.token_ids) for i in batch])
            for part in hidden.split(256):
                (part.to(policy.head.dtype) @ policy.head.T).float().log_softmax(-1)


def main():
    parser = argparse.ArgumentParser(description="Operations and seconds of one update against the paper's accounting.")
    parser.add_argument("model", nargs="?", help="checkpoint folder (default: a made-up tiny one)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--responses", type=int, default=8)
    parser.add_argument("--length", type=int, default=128, help="mean response, tokens")
    parser.add_argument("--micro-tokens", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or make_model(os.path.join(folder, "model"), hidden_size=128, intermediate_size=512,
                                         num_hidden_layers=4, head_dim=32)
        settings = engines.Settings(model, "qwen3", "hf", "float32", 1.0, 1.0, 1024, 0.4, None, 1, 1)
        ways = {"paper": (1, True), "ours": (0, False), "ours, every 4th layer recomputed": (4, False),
                "ours, every 2nd": (2, False), "ours, every layer": (1, False)}  # (--grad-checkpoint-every, behaviour pass)
        policies = {n: load_policy(settings, None, 1, n, torch.device("cpu")) for n in (0, 1, 2, 4)}
        items = rows(args.responses, policies[0].head.shape[0], args.length)
        responses = sum(len(i.y.token_ids) for i in items)
        student = responses + sum(len(i.x) for i in items)
        teacher = responses + sum(len(i.c) for i in items)
        print(f"{student:,} student tokens, {teacher:,} teacher tokens, {responses:,} of responses")

        def run(name):
            every, behaviour = ways[name]
            if behaviour:
                behaviour_pass(policies[every], items, args.micro_tokens)
            distill.update(policies[every], adam(policies[every], 1e-5), items,
                           UpdateArgs(1e-5, float("inf"), "reverse_kl", args.micro_tokens, every))
        flops, seconds = {}, {name: [] for name in ways}
        for name in ways:
            with FlopCounterMode(display=False) as counter:
                run(name)
            flops[name] = counter.get_total_flops()
        for _ in range(args.repeats):
            for name in ways:
                begin = time.perf_counter()
                run(name)
                seconds[name].append(time.perf_counter() - begin)
    print("| update | GFLOP | of the paper's | seconds (best) | of the paper's |\n|---|---|---|---|---|")
    for name in ways:
        print(f"| {name} | {flops[name] / 1e9:,.1f} | {flops[name] / flops['paper']:.3f} | {min(seconds[name]):.2f} | "
              f"{min(seconds[name]) / min(seconds['paper']):.3f} |")


if __name__ == "__main__":
    main()
