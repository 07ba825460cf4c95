"""The rows of a user's own bench, FILE.jsonl; every error is one sentence with the line where it is."""
import ast
import difflib
import json
from pathlib import Path

from benches import grader
from benches.problem import ASSERT_SECONDS, CODE_SECONDS, TEST_TYPES, Problem
from common.errors import BadInput, rows
from prompts import CRITERIA

SHOWN = 20  # bad lines of a file
TEST_FIELDS = ("type", "fn_name", "public", "private", "time_limit")
# the fields of a user's row besides id, problem and verifier; the first is required
OWN_FIELDS = {"math": {"answer": str}, "code": {"tests": dict, "starter_code": str, "imports": list},
              "judge": {"reference": str, "criterion": str}}
VERIFIERS = f"one of {', '.join(OWN_FIELDS)}, or a FILE.py:FUNCTION of your own"


def load(path):
    """The problems of a file, in the order of its lines. BadInput has a sentence for each line that makes none, so that
    a user mends them all at once; a line that is no JSON comes first."""
    problems, sentences = [], []
    for where, row in list(rows(path, unique=True)):
        try:
            problems.append(problem_from_row(row, Path(path).stem, where))
        except BadInput as error:
            sentences.append(str(error))
    if sentences:
        more = [f"And {len(sentences) - SHOWN} more lines."] if len(sentences) > SHOWN else []
        raise BadInput("\n".join(sentences[:SHOWN] + more))
    return problems


def problem_from_row(row, bench, where):
    """-> Problem of a user's own row; BadInput names `where` ("FILE line 3")."""
    def need(condition, sentence):
        if not condition:
            raise BadInput(f"{where}: {sentence}")

    need(parses(str.encode, json.dumps(row, ensure_ascii=False)),
         "it holds half of a surrogate pair: write the whole character.")
    everywhere = {"id": str, "problem": str, "verifier": str}
    verifier = row.get("verifier")
    if isinstance(verifier, str) and grader.OWN.fullmatch(verifier):
        return problem_of_own_verifier(row, bench, where, need)
    if "verifier" not in row:
        need(False, f'"verifier" is missing{likely("verifier", row)}: it must be {VERIFIERS}.')
    need(verifier in list(OWN_FIELDS), f'"verifier" must be {VERIFIERS}.')
    kinds = everywhere | OWN_FIELDS[verifier]
    metadata = {name: value for name, value in row.items() if name not in kinds}
    others = {field for fields in OWN_FIELDS.values() for field in fields}
    for name in metadata:
        need(name not in others, f'unknown field "{name}": a {verifier} problem has {", ".join(kinds)}.')
        meant = difflib.get_close_matches(name, kinds, n=1, cutoff=0.8)
        need(not meant, f'unknown field "{name}": write "{"".join(meant)}", or another name.')
    row = {name: str(value) if name in ("id", "answer") and type(value) is int else value
           for name, value in row.items() if name in kinds}
    for name, value in row.items():
        article = {str: "a string", list: "a list", dict: "an object"}[kinds[name]]
        need(isinstance(value, kinds[name]), f'"{name}" must be {article}.')
        if kinds[name] is str:
            need(value.strip() or name == "starter_code", f'"{name}" is empty.')
    for name in ("id", "problem", next(iter(OWN_FIELDS[verifier]))):
        need(name in row, f'"{name}" is missing: a {verifier} problem needs it.')
    criterion = row.get("criterion", "final_result") if verifier == "judge" else None
    need(criterion in (None, *CRITERIA), f'"criterion" must be one of {", ".join(CRITERIA)}.')
    imports = tuple(row.get("imports", ()))
    need(all(isinstance(line, str) for line in imports) and parses(ast.parse, "\n".join(imports)),
         '"imports" must be a list of lines of code.')
    tests = own_tests(row["tests"], need) if verifier == "code" else None
    return Problem(row["id"], bench, row["problem"], verifier, answer=row.get("answer"), tests=tests,
                   reference=row.get("reference"), criterion=criterion, starter_code=row.get("starter_code", ""),
                   imports=imports, metadata=metadata)


def problem_of_own_verifier(row, bench, where, need):
    """-> Problem of a row whose "verifier" is FILE.py:FUNCTION, beside the bench; its other fields are free."""
    for name in ("id", "problem"):
        need(isinstance(row.get(name), str) and row[name].strip(), f'"{name}" must be a string that is not empty.')
    place = grader.place(row["verifier"], Path(where.rpartition(" line ")[0]).parent, where)
    metadata = {name: value for name, value in row.items() if name not in ("id", "problem", "verifier")}
    return Problem(row["id"], bench, row["problem"], "own", tests={"type": "own", "grade": place, "row": row},
                   metadata=metadata)


def likely(name, row):
    """Which field of a row may be meant by one that is missing, as a part of a sentence."""
    similar = difflib.get_close_matches(name, row, n=1)
    return f', unless "{similar[0]}" is meant for it' if similar else ""


def own_tests(tests, need):
    """-> the "tests" of a user's row with the defaults filled in; need(condition, sentence) raises."""
    for name in tests:
        need(name in TEST_FIELDS, f'unknown field "{name}" in "tests": it has {", ".join(TEST_FIELDS)}.')
    kind = tests.get("type")
    need(kind in TEST_TYPES, f'"type" of "tests" must be one of {", ".join(TEST_TYPES)}.')
    defaults = {"fn_name": None, "private": [], "time_limit": ASSERT_SECONDS if kind == "assert" else CODE_SECONDS}
    tests = defaults | tests
    name, limit = tests["fn_name"], tests["time_limit"]
    need(kind != "functional" or name is not None,
         '"fn_name" of "tests" is missing: a functional test calls the function of that name.')
    need(isinstance(name, str) and name.isidentifier() if kind == "functional" else name is None,
         '"fn_name" of "tests" is the name of the function to call, for type functional alone.')
    need(type(limit) in (int, float) and 0 < limit <= 3600,
         '"time_limit" of "tests" must be a number of seconds above 0, at most 3600.')
    need(isinstance(tests.get("public", []), list), '"public" of "tests" must be a list of tests.')
    need(tests.get("public"), '"public" of "tests" must list at least one test.')
    need(isinstance(tests["private"], list), '"private" of "tests" must be a list.')
    for test in tests["public"] + tests["private"]:
        shown = json.dumps(test)[:60]
        if kind == "assert":
            need(isinstance(test, str) and has_assert(test), f"the test {shown} must be an assert statement.")
        else:
            need(isinstance(test, list) and [type(part) for part in test] == [str, str],
                 f"the test {shown} must be [input, output], two strings.")
        need(kind != "functional" or is_functional(test), f"the test {shown} must hold one JSON value a line.")
    return tests


def parses(parser, text):
    try:
        parser(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deeply
        return False
    return True


def has_assert(text):
    """Whether `text` is Python that asserts something: a test without it could not fail."""
    return parses(ast.parse, text) and any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(text)))


def is_functional(test):
    """Whether [input, output] holds a JSON value on each line of the input (the arguments), and one as output."""
    return all(parses(json.loads, text) for text in [*test[0].split("\n"), test[1]])
