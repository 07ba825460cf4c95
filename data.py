"""The benchmarks: where each comes from, its fields and its splits -> `Problem` (App. C.1, E.1)."""
import gzip
import hashlib
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

BENCHES = ("math500", "lcb", "mbpp", "sciknoweval", "arithmetic")
SEED = 0  # of every selection, order and public/private split; the seed of a run never touches it

MATH500_SHA256 = "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132"

CRITERIA = ("relation_set", "composition", "summary", "key_content", "derivation", "final_result")

# a user's own row: the fields of each verifier with their types, required ones first
OWN_FIELDS = {"math": {"answer": str}, "code": {"tests": dict, "starter_code": str, "imports": list},
              "judge": {"reference": str, "criterion": str}}
OWN_REQUIRED = {"math": ["answer"], "code": ["tests"], "judge": ["reference"]}
TEST_TYPES = ("stdin", "functional", "assert")
ARITHMETIC_WORDINGS = ("Compute {a} + {b}.", "What is {a} + {b}?", "Quickly, what is {a} + {b}?")


class BadInput(Exception):
    """One sentence for the user: what is wrong and what to do."""


@dataclass(frozen=True)
class Problem:
    id: str
    bench: str                    # a name of BENCHES or the stem of the user's own file
    text: str                     # math: problem; lcb: question_content; mbpp: prompt; sciknoweval: default prompt + question
    verifier: str                 # "math" | "code" | "judge"
    answer: str | None = None     # math: the reference answer
    tests: dict | None = None     # code: {"type", "fn_name", "public", "private", "time_limit" (seconds a test)}
    reference: str | None = None  # judge: the reference answer
    criterion: str | None = None  # judge: one of CRITERIA
    starter_code: str = ""        # lcb
    imports: tuple = ()           # mbpp: set-up lines of the asserts
    header: str = ""              # mbpp: imports and def line of the tested function


def exit_with_sentence(main):
    """Run a script's main(); a BadInput is its sentence on stderr and exit status 2."""
    try:
        main()
    except BadInput as error:
        print(error, file=sys.stderr)
        sys.exit(2)


# ------------------------------------------------------------------------------------------------
# files

def read_bytes(path):
    """The bytes of a file, unpacked if it is gzip; BadInput if it cannot be read."""
    try:
        content = Path(path).read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError) as error:
        raise BadInput(f"{path} cannot be read ({error}): name a readable file.") from None


def read_jsonl(path, torn_ok=False):
    """-> one dict a line. BadInput names the line that is no JSON object, an empty one included.

    torn_ok: a last line that is unterminated or undecodable (a crash cut it off) is dropped with a note on stderr.
    """
    lines = read_bytes(path).removeprefix(b"\xef\xbb\xbf").split(b"\n")  # not splitlines: U+2028 may stand in a string
    unterminated = lines.pop() if torn_ok else b""
    if unterminated:
        print(f"{path}: the last line is cut off and left out.", file=sys.stderr)
    while lines and not lines[-1].strip():
        lines.pop()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError as error:  # UnicodeDecodeError and JSONDecodeError
            if torn_ok and number == len(lines) and not unterminated:
                print(f"{path}: the last line is damaged and left out.", file=sys.stderr)
                break
            raise BadInput(f"{path} line {number} is not JSON ({error}): correct or delete it.") from None
        if not isinstance(row, dict):
            raise BadInput(f"{path} line {number} is not a JSON object: write {{...}} on each line.")
        rows.append(row)
    return rows


def sha256(content):
    return hashlib.sha256(content if isinstance(content, bytes) else content.encode()).hexdigest()


def check_sum(path, expected):
    """Say once that a user's copy differs from the file that the paper used (an excerpt, say)."""
    if sha256(read_bytes(path)) != expected:
        print(f"note: {path} differs from the pinned file (sha256 {expected[:12]}...).", file=sys.stderr)


def download(repo, name, expected=None):
    """-> path of a data set's file from the Hugging Face Hub, checked by the sha256 of its content."""
    import huggingface_hub as hub
    try:
        try:
            path = hub.hf_hub_download(repo, name, repo_type="dataset", local_files_only=True)
        except hub.errors.LocalEntryNotFoundError:
            # one quick question first: hf_hub_download itself tries for half a minute where there is no network
            hub.get_hf_file_metadata(hub.hf_hub_url(repo, name, repo_type="dataset"))
            path = hub.hf_hub_download(repo, name, repo_type="dataset")
    except Exception as error:  # its HTTP library, and so the classes of its errors, change with its version
        raise BadInput(f"{name} of https://huggingface.co/datasets/{repo} cannot be fetched ({type(error).__name__}): "
                       f"get the file on a machine with a network and name it with --data FILE.") from error
    if expected and sha256(read_bytes(path)) != expected:
        raise BadInput(f"{path} is not the file that the paper used (its sha256 differs): "
                       f"delete it and try again, or name a good copy with --data FILE.")
    return path


def shuffled(items, content):
    """`items` in a fixed order that depends on `content(item)` alone, not on the order of the file."""
    return sorted(items, key=lambda item: sha256(f"{SEED} {content(item)}"))


# ------------------------------------------------------------------------------------------------
# a user's own bench

def problem_from_row(row, bench, where):
    """-> Problem of a user's row; BadInput names `where` ("FILE line 3")."""
    def need(condition, sentence):
        if not condition:
            raise BadInput(f"{where}: {sentence}")

    need(isinstance(row, dict), "write a problem as a JSON object.")
    verifier = row.get("verifier")
    need(isinstance(verifier, str) and verifier in OWN_FIELDS, f'"verifier" must be one of {", ".join(OWN_FIELDS)}.')
    kinds = {"id": str, "problem": str, "verifier": str} | OWN_FIELDS[verifier]
    for name in row:
        need(name in kinds, f'unknown field "{name}": a {verifier} problem has {", ".join(kinds)}.')
    for name in ["id", "problem"] + OWN_REQUIRED[verifier]:
        need(name in row, f'"{name}" is missing: a {verifier} problem needs it.')
    for name, value in row.items():
        need(isinstance(value, kinds[name]), f'"{name}" must be a {"string" if kinds[name] is str else kinds[name].__name__}.')
        need(kinds[name] is not str or value.strip() or name == "starter_code", f'"{name}" is empty.')
    need(row.get("criterion", "final_result") in CRITERIA, f'"criterion" must be one of {", ".join(CRITERIA)}.')
    need(all(isinstance(line, str) for line in row.get("imports", [])), '"imports" must be a list of lines of code.')
    tests = None
    if verifier == "code":
        tests = {"fn_name": None, "private": [], "time_limit": 6} | row["tests"]
        for name in tests:
            need(name in ("type", "fn_name", "public", "private", "time_limit"),
                 f'unknown field "{name}" in "tests": it has type, fn_name, public, private, time_limit.')
        kind, limit = tests.get("type"), tests["time_limit"]
        need(kind in TEST_TYPES, f'"type" of "tests" must be one of {", ".join(TEST_TYPES)}.')
        need(kind != "functional" or isinstance(tests["fn_name"], str) and tests["fn_name"].isidentifier(),
             '"fn_name" of "tests" must be the name of the function to call.')
        need(isinstance(limit, (int, float)) and limit is not True and 0 < limit < float("inf"),
             '"time_limit" of "tests" must be a positive number of seconds.')
        need(isinstance(tests.get("public"), list) and tests["public"], '"public" of "tests" must hold at least one test.')
        need(isinstance(tests["private"], list), '"private" of "tests" must be a list.')
        for test in tests["public"] + tests["private"]:
            if kind == "assert":
                need(isinstance(test, str), f"{test!r:.60} must be an assert statement.")
            else:
                need(isinstance(test, list) and len(test) == 2 and all(isinstance(text, str) for text in test),
                     f"the test {test!r:.60} must be [input, output], two strings.")
            if kind == "functional":
                try:
                    [json.loads(line) for line in test[0].split("\n") + [test[1]]]
                except ValueError:
                    need(False, f"the test {test!r:.60} must have one JSON value a line.")
    return Problem(row["id"], bench, row["problem"], verifier, row.get("answer"), tests, row.get("reference"),
                   row.get("criterion", "final_result") if verifier == "judge" else None, row.get("starter_code", ""),
                   tuple(row.get("imports", ())))


def own(path):
    return [problem_from_row(row, Path(path).stem, f"{path} line {number}")
            for number, row in enumerate(read_jsonl(path), 1)]


# ------------------------------------------------------------------------------------------------
# the benches

def arithmetic_split(a, b):
    """-> "test" | "train" | "pretrain": where a pair of summands belongs, in either order."""
    return {0: "test", 1: "train"}.get(int(sha256(f"{min(a, b)} + {max(a, b)}"), 16) % 64, "pretrain")


def arithmetic(split):
    """128 additions of two 3-digit numbers, the wordings in turn; made on the spot."""
    rng, pairs = random.Random(f"{SEED} {split}"), {}
    while len(pairs) < 128:
        a, b = rng.randint(100, 999), rng.randint(100, 999)
        if arithmetic_split(a, b) == split:
            pairs[a, b] = len(pairs) % len(ARITHMETIC_WORDINGS)
    return [Problem(f"arithmetic/{a}+{b}", "arithmetic", ARITHMETIC_WORDINGS[wording].format(a=a, b=b), "math", str(a + b))
            for (a, b), wording in pairs.items()]


def math500(split, path):
    """MATH-500, all problems (App. C.1)."""
    if path:
        check_sum(path, MATH500_SHA256)
    else:
        path = download("HuggingFaceH4/MATH-500", "test.jsonl", MATH500_SHA256)
    rows = read_jsonl(path)
    need_fields(rows, path, {"unique_id": str, "problem": str, "answer": str})
    return [Problem(row["unique_id"], "math500", row["problem"], "math", row["answer"])
            for row in shuffled(rows, lambda row: row["problem"])]


def need_fields(rows, path, kinds):
    """BadInput where a row of an upstream file lacks a field or has it in another type."""
    for number, row in enumerate(rows, 1):
        for name, kind in kinds.items():
            if not isinstance(row.get(name), kind):
                raise BadInput(f'{path} line {number} has no "{name}" ({kind.__name__}): is this the file of that bench?')


def load(bench, split="test", path=None, limit=None):
    """-> the Problems of a bench, in a fixed order.

    bench: a name of BENCHES or the user's own FILE.jsonl (in the order of its lines); split: "test" or "train" (App. E.1);
    path: a local copy in the upstream format; limit: the first so many. BadInput says what is wrong.
    """
    if limit is not None and limit < 1:
        raise BadInput("--limit must be at least 1.")
    if split not in ("test", "train"):
        raise BadInput("--split must be test or train.")
    if bench.endswith(".jsonl"):
        if path:
            raise BadInput(f"--data is for the named benches ({', '.join(BENCHES)}): {bench} is read itself.")
        problems, path = own(bench), bench
    elif bench == "math500":
        problems = math500(split, path)
    elif bench == "arithmetic":
        if path:
            raise BadInput("arithmetic is made on the spot: leave out --data.")
        problems = arithmetic(split)
    else:
        raise BadInput(f"there is no bench {bench}: choose one of {', '.join(BENCHES)}, or name your own FILE.jsonl.")
    if not problems:
        raise BadInput(f"{path} holds no problem.")
    seen = set()
    for problem in problems:
        if problem.id in seen:
            raise BadInput(f'{path} holds the id "{problem.id}" twice: every problem needs its own.')
        seen.add(problem.id)
    return problems[:limit]
