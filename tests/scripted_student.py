"""A student whose responses follow from the request's seed alone, and what a rank of torchrun does in test_distill.py.

    torchrun --nproc_per_node N tests/scripted_student.py gradients FOLDER SHARES [distill.py's flags]
"""
import os
import random
import sys

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

import distill
import engines.check
from common import ranks
from common.flags import UpdateArgs
from conftest import make_tokenizer
from engines.base import Engine, Sample
from policy import load_policy

import torch

RANKED = [("qwen3", 0, "float32"), ("qwen3", 2, "float32"), ("olmo3", 0, "float32"), ("olmo3", 2, "float32"),
          ("olmo3", 0, "bfloat16")]  # the models whose gradients ranks share: architecture, recomputed layers, dtype
START = engines.start  # before a test replaces it


class ScriptedStudent:
    """1 to 20 tokens a request, a third of the requests cut off, with made-up log-probabilities; reads no weights."""
    startup_seconds, parameters, gpus, slots, window = 0.0, 1000, 1, 4, 10**6
    resting = Engine.resting

    def __init__(self):
        self.tokenizer, self.asked = make_tokenizer(), []

    def encode(self, messages):
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)

    async def sample(self, prompt_token_ids, *, seed, max_tokens, temperature, top_p, adapter=None, priority=0):
        self.asked.append((seed, adapter))
        rng = random.Random(seed)
        ids = [rng.randrange(256) for _ in range(rng.randint(1, 20))]
        return Sample(ids, self.tokenizer.decode(ids), [-rng.uniform(1, 6) for _ in ids],
                             rng.choice(["stop", "stop", "length"]), len(prompt_token_ids))

    def close(self):
        pass


async def unchecked(trainer, messages):
    """In place of engines.check.check_engine: made-up log-probabilities are no model's."""


async def start(settings, adapters=False, folder="."):
    return ScriptedStudent()


def toy_policy(folder, checkpoint_every=0, dtype="float32"):
    """The policy of a toy model with an adapter that does something."""
    settings = engines.Settings(folder, "qwen3", "hf", dtype, 0.7, 1.0, 20, 0.4, None, 1, 1)
    policy = load_policy(settings, None, 1, checkpoint_every, torch.device("cpu"))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:  # the same numbers however it is sharded
                new = torch.randn(parameter.shape, generator=generator) * 0.05
                if hasattr(parameter, "full_tensor"):
                    from torch.distributed.tensor import distribute_tensor
                    new = distribute_tensor(new, parameter.device_mesh, parameter.placements)
                parameter.copy_(new)
    return policy


def toy_items():
    """Responses of 1 to 13 tokens; contexts longer and shorter than the prompt."""
    rng = random.Random(3)
    items = []
    for prompt, context, response in [(5, 9, 4), (7, 30, 1), (3, 2, 13), (11, 12, 6), (4, 25, 9), (6, 40, 1)]:
        draw = lambda n: [rng.randrange(256) for _ in range(n)]  # noqa: E731
        items.append(distill.Row(draw(prompt), draw(context),
                                  Sample(draw(response), "", [-rng.uniform(1, 6) for _ in range(response)],
                                                "stop", prompt)))
    return items


class Gradients:
    """Stands for the optimizer: keeps the gradients that it is given."""

    def __init__(self, policy):
        self.policy = policy

    def step(self):
        self.kept = {name: (p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad).clone()
                     for name, p in self.policy.model.named_parameters() if p.requires_grad}

    def zero_grad(self):
        for p in self.policy.parameters():
            p.grad = None


def gradients(policy, items, budget, kind="reverse_kl", tau=0.05):
    """-> {parameter: gradient of Eq. 3}, metrics."""
    optimizer = Gradients(policy)
    metrics = distill.update(policy, optimizer, items, UpdateArgs(1e-5, tau, kind, budget, 0, float("inf")))
    return optimizer.kept, metrics


def main():
    """Gradients of the toys in FOLDER on this rank's share, then distill.py on the scripted student."""
    _, folder, shares, *argv = sys.argv[1:]
    ranks.init_ranks()
    rank, world = ranks.rank_and_world()
    shares = [[int(i) for i in share] for share in shares.split(",")]  # "012,,345": rank 1 has none
    for architecture, every, dtype in RANKED:
        policy = toy_policy(os.path.join(folder, architecture), every, dtype)
        # Each row alone in bfloat16: there the rounding depends on what else is in the batch.
        budget = 60 if dtype == "float32" else 1
        found = gradients(policy, [toy_items()[i] for i in shares[rank]], budget)
        if rank == 0:
            torch.save(found, os.path.join(folder, f"{architecture}_{every}_{dtype}_{world}.pt"))
    if argv:
        engines.start, engines.check.check_engine = start, unchecked
        distill.main(argv)


if __name__ == "__main__":
    ranks.run_rank(main)
