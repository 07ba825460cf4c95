"""The benchmarks: where each comes from, its fields and its splits -> `Problem` (App. C.1, E.1).

What is drawn "with a fixed seed" is ordered by a hash of its own content: no choice depends on the order of a file.
"""
import ast
import base64
import collections
import hashlib
import io
import json
import pickle
import random
import sys
import tarfile
import tokenize
import warnings
import zlib
from pathlib import Path

from download import check_copy, file_sha256, from_hub, from_web
from problems import (  # the scripts take theirs from here
    ASSERT_SECONDS, CODE_SECONDS, BadInput, Problem, exit_with_sentence, is_functional, open_file, problem_from_row,
    read_jsonl, rows)

BENCHES = ("math500", "lcb", "mbpp", "sciknoweval", "arithmetic")
SEED = 0  # of choices, orders and the public/private split; the seed of a run never touches it

MATH500_BYTES, MATH500_SHA256 = 446_564, "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132"
MATH_SUBJECTS = ("algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory",
                 "prealgebra", "precalculus")
LCB_REVISION = "0fe84c3912ea0c4d4a78037083943e8f0c4dd505"  # the sums of its files are not known to us
LCB_FIELDS = dict.fromkeys(
    ("question_id", "question_content", "contest_date", "starter_code", "metadata", "private_test_cases"), str)
MBPP_URL = "https://raw.githubusercontent.com/evalplus/mbppplus_release/dadf43da556a00f7bacd71cb154f2932757d9144/"
MBPP_FILES = {  # name: (sha256 of the unpacked file, its fields, first the one that tells it from the other file)
    "MbppPlus-OriginFmt.jsonl.gz": (
        "132d01c96df6b4b0fe0cbb8414092fe62c51b873b160d1ec8fc2ded28484865a",
        {"test_list": list, "task_id": int, "prompt": str, "code": str, "test_imports": list}),
    "MbppPlus.jsonl.gz": (
        "b54e762755248ca411b523c917fa9f93c07b5ff2966bf60b3917b853926a3dad",  # plus_input of one task: {}
        {"plus_input": (list, dict), "task_id": str, "entry_point": str, "canonical_solution": str,
         "atol": (int, float)})}
SCIENCE_URL = "https://github.com/HICAI-ZJU/SciKnowEval/archive/53addee640092d667439e9a8901bf55f2d92c9ed.tar.gz"
SCIENCE_SHA256 = "b6a285dc6710b6896eff49c5a686ffae8e03be284ae563f34071883ce493861d"  # of the sums of its open problems
SCIENCE_FIELDS = dict.fromkeys(
    ("prompt.default", "question", "answer", "type", "domain", "details.level", "details.subtask"), str)
SCIENCE_CRITERIA = {  # subtask: criterion of the judge, of all others final_result; the paper names the criteria alone
    "compound_disease_relation_extraction": "relation_set", "drug_drug_relation_extraction": "relation_set",
    "extract_doping": "relation_set", "material_component_extraction": "composition", "text_summary": "summary",
    "material_text_summary": "summary", "physics_text_summary": "summary", "procedure_generation": "key_content",
    "reagent_generation": "key_content", "Electromagnetic_Derivation": "derivation",
    "General_Physics_Derivation": "derivation", "Quantum_Mechanics_Derivation": "derivation"}
ARITHMETIC_WORDINGS = ("Compute {a} + {b}.", "What is {a} + {b}?", "Quickly, what is {a} + {b}?")


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def shuffled(items, content):
    """`items` in a fixed order that depends on the text content(item) alone."""
    return sorted(items, key=lambda item: sha256(f"{SEED} {content(item)}"))


def squash(text):
    """`text` with its white space evened out, to tell equal problems."""
    return " ".join(text.split())


def checked_rows(found, fields):
    """Yield the rows of an upstream file, given as (where, row); BadInput where one lacks a field of {"name" or
    "outer.inner": type}."""
    for where, row in found:
        for name, kind in fields.items():
            value = row
            for part in name.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if not isinstance(value, kind):
                raise BadInput(f'{where} has no "{name}" of the right type: name the file of that bench.')
        yield row


# ------------------------------------------------------------------------------------------------
# arithmetic and MATH

def arithmetic_split(a, b):
    """-> "test" | "train" | "pretrain": the set that two summands belong to, in either order."""
    return {0: "test", 1: "train"}.get(int(sha256(f"{min(a, b)} + {max(a, b)}"), 16) % 64, "pretrain")


def arithmetic(split):
    """128 additions of two 3-digit numbers, made on the spot, the wordings in turn."""
    rng, problems = random.Random(f"{SEED} {split}"), {}
    while len(problems) < 128:
        a, b = rng.randint(100, 999), rng.randint(100, 999)
        name, wording = f"arithmetic/{a}+{b}", ARITHMETIC_WORDINGS[len(problems) % len(ARITHMETIC_WORDINGS)]
        if arithmetic_split(a, b) == split and name not in problems:
            problems[name] = Problem(name, "arithmetic", wording.format(a=a, b=b), "math", str(a + b))
    return list(problems.values())


def math500(path):
    """MATH-500, all of it (App. C.1)."""
    if path:
        check_copy(path, file_sha256(path), MATH500_SHA256)
    path = path or from_hub("HuggingFaceH4/MATH-500", "test.jsonl", MATH500_SHA256)
    found = checked_rows(rows(path), {"unique_id": str, "problem": str, "answer": str})
    return [Problem(row["unique_id"], "math500", row["problem"], "math", row["answer"])
            for row in shuffled(found, lambda row: row["problem"])]


def math_train(path):
    """500 Level 5 problems of the MATH training split, none of them in MATH-500 (App. E.1).

    path: a copy in JSON lines; MATH-500 is then looked for in its folder first.
    """
    from verifiers import last_boxed  # here, because verifiers.py stands on this file
    beside = []
    if path:
        found = list(checked_rows(rows(path), {"problem": str, "level": str, "solution": str}))
        beside = [file for file in Path(path).parent.glob("*.jsonl")
                  if file.is_file() and file.stat().st_size == MATH500_BYTES and file_sha256(file) == MATH500_SHA256]
    else:
        try:
            import pyarrow.parquet
        except ImportError:
            raise BadInput("MATH's training split comes in parquet files: pip install pyarrow, or name a copy in JSON "
                           "lines with --data FILE.") from None
        files = [f"{subject}/train-00000-of-00001.parquet" for subject in MATH_SUBJECTS]
        found = [row for file in files for row in
                 pyarrow.parquet.read_table(from_hub("EleutherAI/hendrycks_math", file)).to_pylist()]
    try:
        test = {squash(problem.text) for problem in math500(beside[0] if beside else None)}
    except BadInput as error:
        raise BadInput("MATH-500 is needed too, to keep its problems out of the training set: put its test.jsonl "
                       f"beside the --data file ({str(error).rstrip('.')}).") from None
    chosen = {}
    for row in shuffled(found, lambda row: row["problem"]):
        answer = last_boxed(row["solution"])
        if row["level"] == "Level 5" and answer and squash(row["problem"]) not in test:
            chosen.setdefault(row["problem"], answer)
    return [Problem(f"math-train/{sha256(text)[:12]}", "math500", text, "math", answer)
            for text, answer in list(chosen.items())[:500]]


# ------------------------------------------------------------------------------------------------
# SciKnowEval

def sciknoweval(split, path):
    """Open problems of SciKnowEval v2, per domain 75 of L2 and 25 of L5 (App. C.1), or 100 others of L5 (App. E.1).

    path: its rows in JSON lines, or the repository's .tar.gz.
    """
    def is_open(row):
        kind, details = row.get("type"), row.get("details")  # by the label: one L5 file lies in an L3 folder
        return (kind in ("open-ended-qa", "relation_extraction") and isinstance(details, dict)
                and details.get("level") in ("L2", "L5"))

    def text(row):
        return row["prompt"]["default"] + "\n\n" + row["question"]

    path = path or from_web(SCIENCE_URL, "SciKnowEval-v2.tar.gz")
    if str(path).endswith(".tar.gz"):
        try:
            with tarfile.open(fileobj=open_file(path)) as archive:
                found = [(member.name, row) for member in archive
                         if "/raw_data/" in member.name and member.name.endswith(".jsonl")
                         for row in map(json.loads, archive.extractfile(member)) if is_open(row)]
        except (tarfile.TarError, ValueError, AttributeError):  # the last: a line that is no JSON object
            raise BadInput(f"{path} is damaged: delete it and try again.") from None
    else:
        found = [(where, row) for where, row in rows(path) if is_open(row)]
    pool = list(checked_rows(found, SCIENCE_FIELDS))
    check_copy(path, sha256("".join(sorted(sha256(text(row) + row["answer"]) for row in pool))), SCIENCE_SHA256)
    copies = collections.Counter(map(text, pool))
    wanted = {("test", "L2"): range(75), ("test", "L5"): range(25), ("train", "L5"): range(25, 125)}
    problems, ranks = [], collections.Counter()
    for row in shuffled([row for row in pool if copies[text(row)] == 1], text):
        level, subtask = row["details"]["level"], row["details"]["subtask"]
        if ranks[row["domain"], level] in wanted.get((split, level), ()):
            problems.append(Problem(f"sciknoweval/{sha256(text(row))[:12]}", "sciknoweval", text(row), "judge",
                                    reference=row["answer"], criterion=SCIENCE_CRITERIA.get(subtask, "final_result")))
        ranks[row["domain"], level] += 1
    print(f"sciknoweval {split}: {len(problems)} of {len(pool)} problems, {len(pool) - ranks.total()} repeated ones "
          "dropped.", file=sys.stderr)
    return problems


# ------------------------------------------------------------------------------------------------
# LiveCodeBench

class TextUnpickler(pickle.Unpickler):
    """Reads a pickle of built-in values; one that names a class or a function, and so could run code, is refused."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def lcb_tests(row):
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


def lcb_problem(row, split):
    """-> Problem, or None if it fails the static checks: tests of one known type, function and arguments readable."""
    name, pairs, kinds = lcb_tests(row)
    if kinds != {"stdin"} and not (kinds == {"functional"} and name and all(map(is_functional, pairs))):
        return None
    tests = {"type": kinds.pop(), "fn_name": name, "public": pairs, "private": [], "time_limit": CODE_SECONDS}
    if split == "train":  # App. E.1: all of them are public
        tests["stop_at_first_failure"] = True
    else:  # App. C.2: half of them, drawn by the problem alone
        drawn = shuffled(range(len(pairs)), lambda n: f"{row['question_id']} {n}")[: max(1, len(pairs) // 2)]
        tests["public"] = [pair for n, pair in enumerate(pairs) if n in drawn]
        tests["private"] = [pair for n, pair in enumerate(pairs) if n not in drawn]
    return Problem(row["question_id"], "lcb", row["question_content"], "code", tests=tests,
                   starter_code=row["starter_code"])


def lcb(split, path, limit):
    """LiveCodeBench: test is release v6 between two dates (App. C.1), train is v5 without v1 (App. E.1).

    path: a file, or a folder with the upstream names. The tests of the whole training set take several GB of memory.
    """
    def read(*names):
        if path is None:
            names = [from_hub("livecodebench/code_generation_lite", name, revision=LCB_REVISION) for name in names]
        else:
            names = [Path(path, name) for name in names] if Path(path).is_dir() else [path]
        return (row for name in names for row in checked_rows(rows(name), LCB_FIELDS))

    def keys(row):
        return {row["question_id"], squash(row["question_content"])}

    found = [row for row in read("test6.jsonl") if "2025-02-01" <= row["contest_date"] < "2025-05-01"]
    in_test = set()
    if split == "train":
        in_test = {key for row in found for key in keys(row)}
        found = read("test2.jsonl", "test3.jsonl", "test4.jsonl", "test5.jsonl")  # each holds what its release added
    problems, seen, dropped = [], set(), collections.Counter()
    for row in shuffled(found, lambda row: f"{row['question_content']} {row['question_id']}"):
        if keys(row) & in_test:
            dropped["in the test set"] += 1
        elif keys(row) & seen:
            dropped["repeated"] += 1
        elif (problem := lcb_problem(row, split)) is None:
            dropped["failing the static checks"] += 1
        else:
            problems.append(problem)
        if len(problems) == limit:
            break
        seen |= keys(row)
        del row["private_test_cases"]  # large, and decoded by now
    report = [f"{len(problems)} problems"] + [f"{n} {why} dropped" for why, n in dropped.items()]
    print(f"lcb {split}: {', '.join(report)}.", file=sys.stderr)
    return problems


# ------------------------------------------------------------------------------------------------
# MBPP+

def tuples(values):
    return [tuple(value) for value in values]


def deep_tuple(value):
    return tuple(map(deep_tuple, value)) if isinstance(value, list) else value


# JSON has no tuples and no complex numbers: EvalPlus's own conversions of the arguments, by number of the task
MBPP_CONVERSIONS = {
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


def mbpp_header(code, name):
    """-> the import lines of `code` and the def line of function `name`, up to its colon wherever that stands."""
    with warnings.catch_warnings(action="ignore"):  # a pattern such as "\w" in a string that is not raw
        body = ast.parse(code).body
    imports = [ast.unparse(node) for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
    function = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    lines, depth = code.split("\n")[function.lineno - 1 :], 0
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
        depth += (token.string in "([{") - (token.string in ")]}") if token.type == tokenize.OP else 0
        if token.string == ":" and depth == 0:
            end, column = token.end
            return "\n".join([*imports, *lines[: end - 1], lines[end - 1][:column]])


def mbpp(path):
    """MbppPlus v0.2.0, 378 tasks (App. C.1), of two files: the Hub's columns and EvalPlus's; the tasks that both hold.

    path: one of the two with the other beside it ("bpp" in its name), or their folder.
    """
    if path:
        folder, named = (Path(path), []) if Path(path).is_dir() else (Path(path).parent, [path])
        candidates = named + sorted(folder.glob("*bpp*.jsonl*"))
    tables = []  # {number of the task: row} of the one file, then of the other
    for name, (pinned, fields) in MBPP_FILES.items():
        column = next(iter(fields))
        if not path:
            file = from_web(MBPP_URL + name, name, pinned)
        else:
            file = next((file for file in candidates if column in next(rows(file), (None, {}))[1]), None)
            if file is None:
                raise BadInput(f"mbpp is read from two files side by side, and {name} (with the column {column}) is "
                               "not there: name one of the two, or their folder, with --data.")
            check_copy(file, file_sha256(file), pinned)
        tables.append({str(row["task_id"]).removeprefix("Mbpp/"): row for row in checked_rows(rows(file), fields)})
    hub, evalplus = tables
    both = sorted(hub.keys() & evalplus.keys(), key=lambda number: number.zfill(3))  # some prompts are there twice
    return [mbpp_problem(number, hub[number], evalplus[number])
            for number in shuffled(both, lambda number: hub[number]["prompt"])]


def mbpp_problem(number, row, plus):
    """-> Problem of a task from its rows in the two files; BadInput if they are damaged."""
    try:
        convert = next((convert for numbers, convert in MBPP_CONVERSIONS.items() if int(number) in numbers), list)
        inputs, header = [convert(args) for args in plus["plus_input"]], mbpp_header(row["code"], plus["entry_point"])
    except Exception as error:  # a row that somebody has changed can raise nearly anything
        raise BadInput(f"mbpp's task {number} cannot be read ({error!r}): fetch the files again.") from None
    private = {"entry_point": plus["entry_point"], "canonical_solution": plus["canonical_solution"], "inputs": inputs,
               "atol": plus["atol"]}
    tests = {"type": "assert", "fn_name": None, "public": row["test_list"][:3], "private": [],
             "time_limit": ASSERT_SECONDS, "plus": private}
    return Problem(f"Mbpp/{number}", "mbpp", row["prompt"], "code", tests=tests, imports=tuple(row["test_imports"]),
                   header=header)


# ------------------------------------------------------------------------------------------------

def load(bench, split="test", path=None, limit=None):
    """-> the Problems of a bench, in a fixed order; BadInput says what is wrong.

    bench: one of BENCHES, or the user's own FILE.jsonl (in the order of its lines); split: "test" or "train" (App.
    E.1); path: a local copy in the upstream format; limit: only the first so many.
    """
    own = bench.endswith(".jsonl")
    if limit is not None and limit < 1:
        raise BadInput(f"--limit {limit} is too small: it must be at least 1.")
    if split not in ("test", "train") or (bench, split) == ("mbpp", "train"):
        raise BadInput(f"{bench} has no split {split}: --split is test, or train for a bench that has a training set.")
    if path and (own or bench == "arithmetic"):
        raise BadInput(f"--data is a copy of math500, lcb, mbpp or sciknoweval: leave it out with --bench {bench}.")
    if own:
        problems = [problem_from_row(row, Path(bench).stem, where) for where, row in rows(bench)]
    elif bench == "math500":
        problems = math_train(path) if split == "train" else math500(path)
    elif bench == "lcb":
        problems = lcb(split, path, limit)
    elif bench == "mbpp":
        problems = mbpp(path)
    elif bench == "sciknoweval":
        problems = sciknoweval(split, path)
    elif bench == "arithmetic":
        problems = arithmetic(split)
    else:
        raise BadInput(f"there is no bench {bench}: name {', '.join(BENCHES)} or your own FILE.jsonl.")
    if not problems:
        raise BadInput(f"{path or bench} holds no problem for --bench {bench} --split {split}: name another file.")
    for name, number in collections.Counter(problem.id for problem in problems).items():
        if number > 1:
            raise BadInput(f'{path or bench} holds the id "{name}" {number} times: give every problem its own.')
    return problems[:limit]
