"""A problem, JSON lines, and the rows of a user's own bench; every error is one sentence for the user."""
import ast
import errno
import gzip
import io
import json
import os
import sys
import zlib
from dataclasses import dataclass

CODE_SECONDS, ASSERT_SECONDS = 6, 30  # time limit of one test: LiveCodeBench's own; that of an assert's process
TEST_TYPES = ("stdin", "functional", "assert")
TEST_FIELDS = ("type", "fn_name", "public", "private", "time_limit")
# the fields of a user's row besides id, problem and verifier; the first is required
OWN_FIELDS = {"math": {"answer": str}, "code": {"tests": dict, "starter_code": str, "imports": list},
              "judge": {"reference": str, "criterion": str}}
CRITERIA = ("final_result", "relation_set", "composition", "summary", "key_content", "derivation")  # App. C.3


class BadInput(Exception):
    """One sentence for the user: what is wrong and what to do."""


def exit_with_sentence(main):
    """Run a script's main(); a BadInput becomes its sentence on stderr and exit status 2."""
    try:
        main()
        sys.stdout.flush()
    except BadInput as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:  # before or after what a script says of its own when it is stopped
        print("\nStopped.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader has seen enough, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # wherever it was: every file that a run writes survives it
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        print(f"The disk takes no more ({error.strerror}): make room, then the same command goes on; what stands in "
              "the files is kept.", file=sys.stderr)
        sys.exit(2)


@dataclass(frozen=True)
class Problem:
    """tests: {"type": one of TEST_TYPES, "fn_name": str or None, "public" and "private": lists of [input, output] or
    of assert statements, "time_limit": seconds a test}; a training problem of lcb has "stop_at_first_failure": True
    besides; one of mbpp has its private tests as "plus": {"entry_point", "canonical_solution", "atol", "inputs": lists
    of arguments}.
    """
    id: str
    bench: str                    # math500 | lcb | mbpp | sciknoweval | arithmetic | stem of the user's own file
    text: str                     # what the prompt shows of the problem
    verifier: str                 # "math" | "code" | "judge"
    answer: str | None = None     # math: the reference answer
    tests: dict | None = None     # code
    reference: str | None = None  # judge: the reference answer
    criterion: str | None = None  # judge: one of CRITERIA
    starter_code: str = ""        # lcb
    imports: tuple = ()           # mbpp: set-up lines of the asserts
    header: str = ""              # mbpp: import lines and def line of the tested function, for Olmo's prompt


def open_file(path):
    """A file for reading bytes, unpacked if it is gzip; BadInput if it cannot be read."""
    try:
        file = open(path, "rb")
        return io.BytesIO(gzip.decompress(file.read())) if file.peek(2)[:2] == b"\x1f\x8b" else file
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path} cannot be read ({error}): name a readable file.") from None


def rows(path, torn_ok=False):
    """Yield ("PATH line N", dict) for each line; BadInput names a line that is no JSON object, or empty before the end.

    torn_ok: a last line that is unterminated or undecodable (a crash cut it off) is dropped with a note on stderr.
    """
    with open_file(path) as file:
        empty = None
        for number, line in enumerate(file, 1):  # bytes, so that U+2028 inside a string ends no line
            where = f"{path} line {number}"
            if not line.strip():
                empty = empty or where
                continue
            if empty:
                raise BadInput(f"{empty} is empty: delete it.")
            try:
                if torn_ok and not line.endswith(b"\n"):
                    raise ValueError("it has no end")
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                if torn_ok and not file.readline():
                    print(f"{where}, the last, is damaged and left out.", file=sys.stderr)
                    return
                raise BadInput(f"{where} is not JSON ({error}): correct or delete it.") from None
            if not isinstance(row, dict):
                raise BadInput(f"{where} is not a JSON object: write {{...}} on each line.")
            yield where, row


def read_jsonl(path, torn_ok=False):
    """-> one dict a line; see `rows`."""
    return [row for _, row in rows(path, torn_ok)]


def problem_from_row(row, bench, where):
    """-> Problem of a user's own row; BadInput names `where` ("FILE line 3")."""
    def need(condition, sentence):
        if not condition:
            raise BadInput(f"{where}: {sentence}")

    need(parses(str.encode, json.dumps(row, ensure_ascii=False)),
         "it holds half of a surrogate pair: write the whole character.")
    verifier = row.get("verifier")
    need(verifier in list(OWN_FIELDS), f'"verifier" must be one of {", ".join(OWN_FIELDS)}.')
    kinds = {"id": str, "problem": str, "verifier": str} | OWN_FIELDS[verifier]
    for name, value in row.items():
        need(name in kinds, f'unknown field "{name}": a {verifier} problem has {", ".join(kinds)}.')
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
                   imports=imports)


def own_tests(tests, need):
    """-> the "tests" of a user's row with the defaults filled in; need(condition, sentence) raises."""
    for name in tests:
        need(name in TEST_FIELDS, f'unknown field "{name}" in "tests": it has {", ".join(TEST_FIELDS)}.')
    kind = tests.get("type")
    need(kind in TEST_TYPES, f'"type" of "tests" must be one of {", ".join(TEST_TYPES)}.')
    defaults = {"fn_name": None, "private": [], "time_limit": ASSERT_SECONDS if kind == "assert" else CODE_SECONDS}
    tests = defaults | tests
    name, limit = tests["fn_name"], tests["time_limit"]
    need(isinstance(name, str) and name.isidentifier() if kind == "functional" else name is None,
         '"fn_name" of "tests" is the name of the function to call, for type functional alone.')
    need(type(limit) in (int, float) and 0 < limit <= 3600,
         '"time_limit" of "tests" must be a number of seconds above 0, at most 3600.')
    need(isinstance(tests.get("public"), list) and tests["public"],
         '"public" of "tests" must list at least one test.')
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
