"""MBPP+ (App. C.1): the tasks, and EvalPlus v0.2.0's private tests: inputs, expected outputs, comparison, time limits.

All inputs of an answer run in one process of the sandbox, in order; a hang or crash costs that answer only. What is
expected comes from the reference solution, run once in the sandbox and kept on disk. The comparison happens here,
outside.
"""
import ast
import hashlib
import io
import json
import math
import os
import sys
import tempfile
import threading
import tokenize
import warnings
from pathlib import Path

from benches.files import check_copy, checked_rows, file_sha256, from_web, shuffled
from benches.problem import ASSERT_SECONDS, Problem
from common.errors import BadInput, rows
from sandbox import run
from sandbox.program import LONG, decode, distinct, encode


# ---------------------------------------------------------------------------------------------------------------------
# The tasks


URL = "https://raw.githubusercontent.com/evalplus/mbppplus_release/dadf43da556a00f7bacd71cb154f2932757d9144/"
FILES = {  # name: (sha256 of the unpacked file, its fields, first the one that tells it from the other file)
    "MbppPlus-OriginFmt.jsonl.gz": (
        "132d01c96df6b4b0fe0cbb8414092fe62c51b873b160d1ec8fc2ded28484865a",
        {"test_list": list, "task_id": int, "prompt": str, "code": str, "test_imports": list}),
    "MbppPlus.jsonl.gz": (
        "b54e762755248ca411b523c917fa9f93c07b5ff2966bf60b3917b853926a3dad",  # plus_input of one task: {}
        {"plus_input": (list, dict), "task_id": str, "entry_point": str, "canonical_solution": str,
         "atol": (int, float)})}


def tuples(values):
    return [tuple(value) for value in values]


def deep_tuple(value):
    return tuple(map(deep_tuple, value)) if isinstance(value, list) else value


# JSON has no tuples and no complex numbers: EvalPlus's own conversions of the arguments, by number of the task
CONVERSIONS = {
    (2, 116, 132, 222, 261, 273, 394, 421, 424, 429, 470, 560, 579, 596, 616, 630, 726, 740, 744, 809): tuples,
    (63, 64, 70, 94, 120, 237, 272, 299, 409, 473, 614, 780): lambda args: [tuples(arg) for arg in args],
    (75, 413, 753): lambda args: [tuples(args[0]), *args[1:]],
    (250, 405, 446, 720, 763, 808): lambda args: [tuple(args[0]), *args[1:]],
    (106, 750): lambda args: [args[0], tuple(args[1])],
    (259, 445): lambda args: [tuple(tuples(arg)) for arg in args],
    (580, 615, 791): lambda args: [deep_tuple(arg) for arg in args],
    (278,): lambda args: [tuple(tuple(item) if isinstance(item, list) else item for item in args[0])],
    (124,): lambda args: [float(args[0]), complex(args[1])],
    (252,): lambda args: [complex(args[0])],
    (722,): lambda args: [{name: tuple(value) for name, value in args[0].items()}, *args[1:]],
}


def header_of(code, name):
    """-> the import lines of `code` and the def line of function `name`, up to its colon wherever that stands."""
    with warnings.catch_warnings(action="ignore"):  # a pattern such as "\w" in a string that is not raw
        body = ast.parse(code).body
    imports = [ast.unparse(node) for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
    function = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    lines, depth = code.split("\n")[function.lineno - 1 :], 0
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
        if token.string == ":" and depth == 0:
            end, column = token.end
            return "\n".join([*imports, *lines[: end - 1], lines[end - 1][:column]])


def load(path):
    """MbppPlus v0.2.0, 378 tasks (App. C.1), of two files: the Hub's columns and EvalPlus's; the tasks that both hold.

    path: one of the two with the other beside it ("bpp" in its name), or their folder.
    """
    tables = []  # {number of the task: row} of the one file, then of the other
    for name, (pinned, fields) in FILES.items():
        file = own_copy(path, name) if path else from_web(URL + name, name, pinned)
        tables.append({str(row["task_id"]).removeprefix("Mbpp/"): row for row in checked_rows(rows(file), fields)})
    hub, evalplus = tables
    both = sorted(hub.keys() & evalplus.keys(), key=lambda number: number.zfill(3))  # some prompts are there twice
    return [problem_of(number, hub[number], evalplus[number])
            for number in shuffled(both, lambda number: hub[number]["prompt"])]


def own_copy(path, name):
    """-> path of the user's copy of the file `name`: the first, of `path` and those beside it, with its column."""
    folder, named = (Path(path), []) if Path(path).is_dir() else (Path(path).parent, [path])
    pinned, fields = FILES[name]
    column = next(iter(fields))
    for file in [*named, *sorted(folder.glob("*bpp*.jsonl*"))]:
        _, first = next(rows(file), (None, {}))
        if column in first:
            check_copy(file, file_sha256(file), pinned)
            return file
    raise BadInput(f"mbpp is read from two files side by side, and {name} (with the column {column}) is not there: "
                   "name one of the two, or their folder, with --data.")


def problem_of(number, row, plus):
    """-> Problem of a task from its rows in the two files; BadInput if they are damaged."""
    try:
        convert = next((convert for numbers, convert in CONVERSIONS.items() if int(number) in numbers), list)
        inputs = [convert(args) for args in plus["plus_input"]]
        header = header_of(row["code"], plus["entry_point"])
    except Exception as error:  # a row that somebody has changed can raise nearly anything
        raise BadInput(f"mbpp's task {number} cannot be read ({error!r}): fetch the files again.") from None
    private = {"entry_point": plus["entry_point"], "canonical_solution": plus["canonical_solution"], "inputs": inputs,
               "atol": plus["atol"]}
    tests = {"type": "assert", "fn_name": None, "public": row["test_list"][:3], "private": [],
             "time_limit": ASSERT_SECONDS, "plus": private}
    return Problem(f"Mbpp/{number}", "mbpp", row["prompt"], "code", tests=tests, imports=tuple(row["test_imports"]),
                   header=header)


# ---------------------------------------------------------------------------------------------------------------------
# The private tests


MEMORY_BYTES = 4 << 30
LEAST_SECONDS, TIMES_REFERENCE, MOST_SECONDS = 4.0, 4.0, 60.0  # an input's limit, and all of an answer's
REFERENCE_SECONDS = 60  # for one input: the slowest takes about 3
AS_SETS = {"similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum",
           "intersection_array", "find_dissimilar", "Diff"}
MOST_ITEMS = 10**6  # of an answer that is compared as a set
FOUND_OR_NOT = {"check_str", "text_match_three", "text_starta_endb"}  # of a match object only whether it is None counts
ROUNDING, RELATIVE = 1e-6, 1e-7  # tolerance that float outputs get; relative part of every tolerance
locks, locks_lock = {}, threading.Lock()


def passes(problem, program):
    """Does `program` give what is expected on every private input? RuntimeError if the reference does not run."""
    plus = problem.tests["plus"]
    if not plus["inputs"]:
        return True
    expected, reference_seconds = reference(problem)
    limits = [max(LEAST_SECONDS, TIMES_REFERENCE * seconds) for seconds in reference_seconds]
    # The reference alone needs much of EvalPlus's 60 s for one task; where it needs more, the machine is slow.
    total = max(min(MOST_SECONDS, sum(limits)) + 2, 2 * sum(reference_seconds))
    loading, *outcomes = run_inputs(problem, program, [max(limits), *limits], total)
    if len(outcomes) < len(expected) or any(outcome.kind != "ok" for outcome in (loading, *outcomes)):
        return False
    atol = plus["atol"]
    for given, outcome, right in zip(plus["inputs"], outcomes, expected):
        if not atol and is_floats(right):
            atol = ROUNDING  # as in EvalPlus, it stays for the inputs that follow
        if not same(plus["entry_point"], given, outcome.value, right, atol):
            return False
    return True


def run_inputs(problem, program, seconds, total):
    """-> Outcomes of loading `program` and of the inputs up to the first that fails."""
    plus = problem.tests["plus"]
    steps = [{"call": plus["entry_point"], "args": [encode(arg) for arg in args]} for args in plus["inputs"]]
    with run.answer(program, imports=problem.imports, memory=MEMORY_BYTES, digests=True) as answer:
        outcomes, = answer.run_modules([steps], seconds, total)
    return outcomes


def reference(problem):
    """-> (expected outputs, seconds that each took), from the cache folder if this Python has computed them before."""
    plus = problem.tests["plus"]
    inputs = [[encode(arg) for arg in args] for args in plus["inputs"]]
    key = json.dumps([plus["canonical_solution"], plus["entry_point"], inputs, list(problem.imports), LONG,
                      sys.version_info[:2]])
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leaf" / "mbpp"
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    with locks_lock:
        lock = locks.setdefault(path, threading.Lock())
    with lock:  # one thread computes, the others wait
        try:
            values, seconds = json.loads(path.read_text())
        except (OSError, ValueError):  # not there, or cut off
            _, *outcomes = run_inputs(problem, plus["canonical_solution"], REFERENCE_SECONDS, math.inf)
            if len(outcomes) < len(inputs) or outcomes[-1].kind != "ok":
                why = f"{problem.id}: the reference solution does not run here ({outcomes[-1:]})"
                raise RuntimeError(why) from None
            values = [encode(outcome.value) for outcome in outcomes]
            seconds = [outcome.seconds for outcome in outcomes]
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
                json.dump([values, seconds], file)
            os.replace(file.name, path)
    values = [decode(value) for value in values]
    if plus["entry_point"] in FOUND_OR_NOT:
        values = [value is not None for value in values]
    return values, seconds


# ---------------------------------------------------------------------------------------------------------------------
# Comparison


def same(entry_point, given, output, right, atol):
    """EvalPlus's rule: equal; or what the oracle of the task accepts; or equal within `atol`, for the same type."""
    if entry_point in FOUND_OR_NOT:
        return (output if isinstance(output, bool) else output is not None) == right
    if output == right:
        return True
    if entry_point in AS_SETS:
        try:
            return len(output) <= MOST_ITEMS and set(distinct(list(output))) == set(right)
        except (TypeError, ValueError, OverflowError):
            return False
    if entry_point == "surface_Area":  # of a pyramid: the height may be its own, not that of its sides
        edge, height = given
        other = round(edge**2 + 2 * edge * math.sqrt((edge / 2) ** 2 + height**2))
        return isinstance(output, (int, float)) and abs(output - other) <= atol  # abs of a complex number may raise
    if entry_point == "digit_distance_nums":  # numbers of different length may be filled up with zeros
        digits = max(len(str(number)) for number in given)
        one, two = (str(number).zfill(digits) for number in given)
        return output == sum(abs(int(a) - int(b)) for a, b in zip(one, two))
    return bool(atol) and type(output) is type(right) and close(output, right, atol)


def close(output, right, atol):
    """numpy's allclose for numbers and for lists of the same shape; nothing else is close."""
    if isinstance(right, (list, tuple)):
        return (isinstance(output, (list, tuple)) and len(output) == len(right)
                and all(close(one, other, atol) for one, other in zip(output, right)))
    if not (is_number(output) and is_number(right)):
        return False
    try:
        return output == right or abs(output - right) <= atol + RELATIVE * abs(right)
    except OverflowError:
        return False


def is_number(value):
    return isinstance(value, (int, float, complex))


def is_floats(value):
    """A float, or a list or tuple of floats that is not empty."""
    return isinstance(value, float) or (isinstance(value, (list, tuple)) and value != type(value)()
                                        and all(isinstance(item, float) for item in value))
