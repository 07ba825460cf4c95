"""Where problems come from: four benchmarks, arithmetic, and a user's own file (App. C.1, E.1)."""
import collections

from benches import arithmetic, livecodebench, math500, mbpp, own, sciknoweval
from common.errors import BadInput
BENCHES = ("math500", "lcb", "mbpp", "sciknoweval", "arithmetic")


def load(bench, split="test", path=None, limit=None):
    """-> the Problems of a bench, in a fixed order; BadInput says what is wrong.

    bench: one of BENCHES, or the user's own FILE.jsonl (in the order of its lines); split: "test" or "train" (App.
    E.1); path: a local copy in the upstream format; limit: only the first so many.
    """
    is_own = bench.endswith(".jsonl")
    if limit is not None and limit < 1:
        raise BadInput(f"--limit {limit} is too small: it must be at least 1.")
    if split not in ("test", "train") or (bench, split) == ("mbpp", "train"):
        raise BadInput(f"{bench} has no split {split}: --split is test, or train for a bench that has a training set.")
    if path and (is_own or bench == "arithmetic"):
        raise BadInput(f"--data is a copy of math500, lcb, mbpp or sciknoweval: leave it out with --bench {bench}.")
    if is_own:
        problems = own.load(bench)
    elif bench == "math500":
        problems = math500.load(split, path)
    elif bench == "lcb":
        problems = livecodebench.load(split, path, limit)
    elif bench == "mbpp":
        problems = mbpp.load(path)
    elif bench == "sciknoweval":
        problems = sciknoweval.load(split, path)
    elif bench == "arithmetic":
        problems = arithmetic.load(split)
    else:
        raise BadInput(f"there is no bench {bench}: name {', '.join(BENCHES)} or your own FILE.jsonl.")
    if not problems:
        raise BadInput(f"{path or bench} holds no problem for --bench {bench} --split {split}: name another file.")
    for name, number in collections.Counter(problem.id for problem in problems).items():
        if number > 1:
            raise BadInput(f'{path or bench} holds the id "{name}" {number} times: give every problem its own.')
    return problems[:limit]
