"""The private tests of MBPP+ (App. C.1): EvalPlus v0.2.0's inputs, expected outputs, comparison and time limits.

All inputs of an answer run in one process of the sandbox, in order; a hang or crash costs that answer only. What is
expected comes from the reference solution, run once in the sandbox and kept on disk. The comparison happens here,
outside.
"""
import hashlib
import json
import math
import os
import sys
import tempfile
import threading
from pathlib import Path

import execution
import sandbox

MEMORY_BYTES = 4 << 30
LEAST_SECONDS, TIMES_REFERENCE, MOST_SECONDS = 4.0, 4.0, 60.0  # an input's limit, and all of an answer's
REFERENCE_SECONDS = 60  # for one input: the slowest takes about 3
AS_SETS = {"similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum",
           "intersection_array", "find_dissimilar", "Diff"}
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
    loading, *outcomes = run(problem, program, [max(limits), *limits], total)
    if loading.kind != "ok" or len(outcomes) < len(expected) or any(outcome.kind != "ok" for outcome in outcomes):
        return False
    atol = plus["atol"]
    for given, outcome, right in zip(plus["inputs"], outcomes, expected):
        if not atol and is_floats(right):
            atol = ROUNDING  # as in EvalPlus, it stays for the inputs that follow
        if not same(plus["entry_point"], given, outcome.value, right, atol):
            return False
    return True


def run(problem, program, seconds, total):
    """-> Outcomes of loading `program` and of the inputs up to the first that fails."""
    plus = problem.tests["plus"]
    steps = [{"call": plus["entry_point"], "args": [execution.encode(arg) for arg in args]} for args in plus["inputs"]]
    outcomes, = sandbox.run_modules(program, [steps], seconds, total, imports=problem.imports, memory=MEMORY_BYTES,
                                    digests=True)
    return outcomes


def reference(problem):
    """-> (expected outputs, seconds that each took), from the cache folder if this Python has computed them before."""
    plus = problem.tests["plus"]
    inputs = [[execution.encode(arg) for arg in args] for args in plus["inputs"]]
    key = json.dumps([plus["canonical_solution"], plus["entry_point"], inputs, list(problem.imports), execution.LONG,
                      sys.version_info[:2]])
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leaf" / "mbpp"
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    with locks_lock:
        lock = locks.setdefault(path, threading.Lock())
    with lock:  # one thread computes, the others wait
        try:
            values, seconds = json.loads(path.read_text())
        except (OSError, ValueError):  # not there, or cut off
            _, *outcomes = run(problem, plus["canonical_solution"], REFERENCE_SECONDS, math.inf)
            if len(outcomes) < len(inputs) or outcomes[-1].kind != "ok":
                why = f"{problem.id}: the reference solution does not run here ({outcomes[-1:]})"
                raise RuntimeError(why) from None
            values = [execution.encode(outcome.value) for outcome in outcomes]
            seconds = [outcome.seconds for outcome in outcomes]
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
                json.dump([values, seconds], file)
            os.replace(file.name, path)
    values = [execution.decode(value) for value in values]
    if plus["entry_point"] in FOUND_OR_NOT:
        values = [value is not None for value in values]
    return values, seconds


# ---- Comparison -----------------------------------------------------------------------------------------------------


def same(entry_point, given, output, right, atol):
    """EvalPlus's rule: equal; or what the oracle of the task accepts; or equal within `atol`, for the same type."""
    if entry_point in FOUND_OR_NOT:
        return (output if isinstance(output, bool) else output is not None) == right
    if output == right:
        return True
    if entry_point in AS_SETS:
        try:
            return set(execution.distinct(list(output))) == set(right)
        except (TypeError, ValueError):
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
