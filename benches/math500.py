"""MATH-500 (App. C.1), and the training problems of MATH that are not in it (App. E.1)."""
from pathlib import Path

from answers import last_boxed
from benches.files import check_copy, checked_rows, file_sha256, from_hub, sha256, shuffled, squash
from benches.problem import Problem
from common.errors import BadInput, rows

BYTES, SHA256 = 446_564, "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132"
SUBJECTS = ("algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory",
            "prealgebra", "precalculus")


def load(split, path):
    return training_problems(path) if split == "train" else test_problems(path)


def test_problems(path):
    """MATH-500, all of it (App. C.1)."""
    if path:
        check_copy(path, file_sha256(path), SHA256)
    path = path or from_hub("HuggingFaceH4/MATH-500", "test.jsonl", SHA256)
    upstream = checked_rows(rows(path), {"unique_id": str, "problem": str, "answer": str})
    return [Problem(row["unique_id"], "math500", row["problem"], "math", row["answer"])
            for row in shuffled(upstream, lambda row: row["problem"])]


def training_problems(path):
    """500 Level 5 problems of the MATH training split, none of them in MATH-500 (App. E.1).

    path: a copy in JSON lines; MATH-500 is then looked for in its folder first.
    """
    if path:
        candidates = list(checked_rows(rows(path), {"problem": str, "level": str, "solution": str}))
    else:
        candidates = downloaded_rows()
    try:
        test = {squash(problem.text) for problem in test_problems(test_file_beside(path) if path else None)}
    except BadInput as error:
        raise BadInput("MATH-500 is needed too, to keep its problems out of the training set: put its test.jsonl "
                       f"beside the --data file ({str(error).rstrip('.')}).") from None
    answers = {}  # text of the problem: answer
    for row in shuffled(candidates, lambda row: row["problem"]):
        answer = last_boxed(row["solution"])
        if row["level"] == "Level 5" and answer and squash(row["problem"]) not in test:
            answers.setdefault(row["problem"], answer)
    return [Problem(f"math-train/{sha256(text)[:12]}", "math500", text, "math", answer)
            for text, answer in list(answers.items())[:500]]


def downloaded_rows():
    try:
        import pyarrow.parquet
    except ImportError:
        raise BadInput("MATH's training split comes in parquet files: pip install pyarrow, or name a copy in JSON "
                       "lines with --data FILE.") from None
    table_rows = []
    for subject in SUBJECTS:
        file = from_hub("EleutherAI/hendrycks_math", f"{subject}/train-00000-of-00001.parquet")
        table_rows += pyarrow.parquet.read_table(file).to_pylist()
    return table_rows


def test_file_beside(path):
    """The file of MATH-500 in the folder of `path`, known by its content; None if there is none."""
    for file in Path(path).parent.glob("*.jsonl"):
        if file.is_file() and file.stat().st_size == BYTES and file_sha256(file) == SHA256:
            return file
    return None
