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
    if limit is not None and limit < 1:
        raise BadInput(f"--limit {limit} is too small: it must be at least 1.")
    if split not in ("test", "train") or (bench, split) == ("mbpp", "train"):
        raise BadInput(f"{bench} has no split {split}: --split is test, or train for a bench that has a training set.")
    if path and (bench.endswith(".jsonl") or bench == "arithmetic"):
        raise BadInput(f"--data is a copy of math500, lcb, mbpp or sciknoweval: leave it out with --bench {bench}.")
    problems = read(bench, split, path, limit)
    if not problems:
        raise BadInput(f"{path or bench} holds no problem for --bench {bench} --split {split}: name another file.")
    for name, count in collections.Counter(problem.id for problem in problems).items():
        if count > 1:
            raise BadInput(f'{path or bench} holds the id "{name}" {count} times: give every problem its own.')
    return problems[:limit]


def read(bench, split, path, limit):
    if bench.endswith(".jsonl"):
        return own.load(bench)
    if bench == "math500":
        return math500.load(split, path)
    if bench == "lcb":
        return livecodebench.load(split, path, limit)
    if bench == "mbpp":
        return mbpp.load(path)
    if bench == "sciknoweval":
        return sciknoweval.load(split, path)
    if bench == "arithmetic":
        return arithmetic.load(split)
    raise BadInput(f"there is no bench {bench}: name {', '.join(BENCHES)} or your own FILE.jsonl.")
