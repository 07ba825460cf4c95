"""LiveCodeBench: release v6 between two dates as test set, v5 without v1 as training set (App. C.1, C.2, E.1)."""
import base64
import collections
import io
import json
import pickle
import sys
import zlib
from pathlib import Path

from benches.files import checked_rows, from_hub, shuffled, squash
from benches.own import is_functional
from benches.problem import CODE_SECONDS, Problem
from common.errors import BadInput, rows

REVISION = "0fe84c3912ea0c4d4a78037083943e8f0c4dd505"  # the sums of its files are not known to us
PAPER = {"test": 131, "train": 478}  # problems (App. C.1, E.1)
FIELDS = dict.fromkeys(
    ("question_id", "question_content", "contest_date", "starter_code", "metadata", "private_test_cases"), str)


class TextUnpickler(pickle.Unpickler):
    """Reads a pickle of built-in values; one that names a class or a function, and so could run code, is refused."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def tests_of(row):
    """-> (function name or None, private tests [[input, output], ...], set of their types); BadInput if damaged.

    The tests are JSON, or base64 of zlib of a pickle of the JSON text.
    """
    text = row["private_test_cases"]
    try:
        if not text.startswith("["):
            text = TextUnpickler(io.BytesIO(zlib.decompress(base64.b64decode(text, validate=True)))).load()
        tests = json.loads(text)
        pairs = [[str(test["input"]), str(test["output"])] for test in tests]
        return json.loads(row["metadata"]).get("func_name"), pairs, {test["testtype"] for test in tests}
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise BadInput(f"{row['question_id']}: its metadata or private_test_cases cannot be read ({error}): fetch the "
                       "file again.") from None


def problem_of(row, split):
    """-> Problem, or None if it fails the static checks: tests of one known type, function and arguments readable."""
    name, pairs, types = tests_of(row)
    functional = types == {"functional"} and name and all(map(is_functional, pairs))
    if types != {"stdin"} and not functional:
        return None
    tests = {"type": types.pop(), "fn_name": name, "public": pairs, "private": [], "time_limit": CODE_SECONDS}
    if split == "train":  # App. E.1: all of them are public
        tests["stop_at_first_failure"] = True
    else:  # App. C.2: half of them, drawn by the problem alone
        order = shuffled(range(len(pairs)), lambda n: f"{row['question_id']} {n}")
        public = order[: max(1, len(pairs) // 2)]
        tests["public"] = [pair for n, pair in enumerate(pairs) if n in public]
        tests["private"] = [pair for n, pair in enumerate(pairs) if n not in public]
    return Problem(row["question_id"], "lcb", row["question_content"], "code", tests=tests,
                   starter_code=row["starter_code"])


def load(split, path, limit):
    """LiveCodeBench: test is release v6 between two dates (App. C.1), train is v5 without v1 (App. E.1).

    path: a file, or a folder with the upstream names. The tests of the whole training set take several GB of memory.
    """
    test = [row for row in read(path, "test6.jsonl") if "2025-02-01" <= row["contest_date"] < "2025-05-01"]
    if split == "train":
        # each file holds what its release added
        candidates = read(path, "test2.jsonl", "test3.jsonl", "test4.jsonl", "test5.jsonl")
        in_test = {key for row in test for key in keys(row)}
    else:
        candidates, in_test = test, set()
    problems, dropped = chosen(candidates, in_test, split, limit)
    counts = [f"{len(problems)} problems"] + [f"{n} {why} dropped" for why, n in dropped.items()]
    is_whole = limit is None or len(problems) < limit
    difference = f" The paper has {PAPER[split]}." if is_whole and len(problems) != PAPER[split] else ""
    print(f"lcb {split}: {', '.join(counts)}.{difference}", file=sys.stderr)
    return problems


def read(path, *names):
    """-> iterator of the rows of these upstream files, or of the one file `path`."""
    if path is None:
        files = [from_hub("livecodebench/code_generation_lite", name, revision=REVISION) for name in names]
    elif Path(path).is_dir():
        files = [Path(path, name) for name in names]
    else:
        files = [path]
    return (row for file in files for row in checked_rows(rows(file), FIELDS))


def keys(row):
    """What makes two rows the same problem: one of these in common."""
    return {row["question_id"], squash(row["question_content"])}


def chosen(candidates, in_test, split, limit):
    """-> (Problems in a fixed order, {why: how many rows were dropped}); in_test: `keys` that may not be there."""
    problems, seen, dropped = [], set(), collections.Counter()
    for row in shuffled(candidates, lambda row: f"{row['question_content']} {row['question_id']}"):
        if keys(row) & in_test:
            dropped["in the test set"] += 1
        elif keys(row) & seen:
            dropped["repeated"] += 1
        elif (problem := problem_of(row, split)) is None:
            dropped["failing the static checks"] += 1
        else:
            problems.append(problem)
        if len(problems) == limit:
            break
        seen |= keys(row)
        del row["private_test_cases"]  # large, and decoded by now
    return problems, dropped
