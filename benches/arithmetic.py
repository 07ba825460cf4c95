"""Additions of two 3-digit numbers, made on the spot: the bench of the tiny model (tiny.py)."""
import random

from benches.files import SEED, sha256
from benches.problem import Problem

WORDINGS = ("Compute {a} + {b}.", "What is {a} + {b}?", "Quickly, what is {a} + {b}?")


def split_of(a, b):
    """-> "test" | "train" | "pretrain": the set that two summands belong to, in either order."""
    number = int(sha256(f"{min(a, b)} + {max(a, b)}"), 16) % 64
    return {0: "test", 1: "train"}.get(number, "pretrain")


def load(split):
    """128 additions of two 3-digit numbers, made on the spot, the wordings in turn."""
    rng, problems = random.Random(f"{SEED} {split}"), {}
    while len(problems) < 128:
        a, b = rng.randint(100, 999), rng.randint(100, 999)
        name = f"arithmetic/{a}+{b}"
        if split_of(a, b) == split and name not in problems:
            wording = WORDINGS[len(problems) % len(WORDINGS)]
            problems[name] = Problem(name, "arithmetic", wording.format(a=a, b=b), "math", str(a + b))
    return list(problems.values())
