"""The loaders on small data of our own, and on the real files in the folder that LEAF_DATA names."""
import base64
import gzip
import hashlib
import io
import json
import math
import os
import pickle
import random
import re
import subprocess
import sys
import tarfile
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import benches
from benches import own
from common import journal
import verifiers
from benches import arithmetic, files, math500, mbpp, sciknoweval
from benches.problem import Problem
from common.errors import BadInput, read_jsonl

ROOT = Path(__file__).parent.parent
REAL = Path(os.environ.get("LEAF_DATA", "none"))
real = pytest.mark.skipif(not REAL.is_dir(), reason="LEAF_DATA names no folder with the real files")


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def shuffle(path, target):
    """The lines of a file in another order."""
    lines = Path(path).read_bytes().rstrip(b"\n").split(b"\n")
    random.Random(1).shuffle(lines)
    target.write_bytes(b"\n".join(lines) + b"\n")
    return str(target)


# ------------------------------------------------------------------------------------------------
# JSON lines and the user's own bench

@pytest.mark.parametrize("content, sentence", [
    (b'{"a": 1}\n{"a": \n', "line 2 is not JSON"),
    (b'{"a": 1} {"a": 2}\n', "line 1 is not JSON"),
    (b'{"a": "\xe9"}\n', "line 1 is not JSON"),
    (b'{"a": 1}\n\n{"a": 2}\n', "line 2 is empty"),
    (b'{"a": 1}\n[1]\n', "line 2 is not a JSON object"),
    (b'{"a": 1}\n' + b"[" * 100_000 + b"\n", "line 2 is not JSON"),
    (b'{"a": ' + b"9" * 100_000 + b"}\n", "line 1 is not JSON"),
    (gzip.compress(b'{"a": 1}\n')[:-9], "cannot be read"),
    (gzip.compress(b'{"a": 1}\n')[:-8] + bytes(8), "cannot be read"),
    (b"\x1f\x8bno gzip", "cannot be read"),
])
def test_broken_lines(tmp_path, content, sentence):
    (tmp_path / "x.jsonl").write_bytes(content)
    with pytest.raises(BadInput, match=sentence):
        read_jsonl(tmp_path / "x.jsonl")


def test_unreadable_files(tmp_path):
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(BadInput, match="cannot be read"):
            read_jsonl(path)


@pytest.mark.parametrize("content", ['{"a": 1}\n{"a": "\u2028"}\n', '\ufeff{"a": 1}\r\n{"a": "\u2028"}',
                                     '{"a": 1}\n{"a": "\u2028"}\n\n \n'])
def test_lines_that_are_fine(tmp_path, content):
    (tmp_path / "x.jsonl").write_bytes(content.encode())
    assert read_jsonl(tmp_path / "x.jsonl") == [{"a": 1}, {"a": "\u2028"}]
    (tmp_path / "x.gz").write_bytes(gzip.compress(content.encode()))
    assert read_jsonl(tmp_path / "x.gz") == [{"a": 1}, {"a": "\u2028"}]


def test_a_file_cut_off_at_any_byte(tmp_path, capsys):
    whole = '{"a": 1}\n{"a": "\u00e9"}\n'.encode()
    for end in range(len(whole) + 1):
        (tmp_path / "x.jsonl").write_bytes(whole[:end])
        lines = whole[:end].count(b"\n")
        assert read_jsonl(tmp_path / "x.jsonl", torn_ok=True) == [{"a": 1}, {"a": "\u00e9"}][:lines]
        assert ("is damaged and left out" in capsys.readouterr().err) == (not whole[:end].endswith(b"\n") and end > 0)


def test_torn_is_the_last_line_alone(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b'{"a": 1}\n{"a": \0\0\n')
    assert read_jsonl(tmp_path / "x.jsonl", torn_ok=True) == [{"a": 1}]
    (tmp_path / "x.jsonl").write_bytes(b'{"a": \n{"a": 1}\n')
    with pytest.raises(BadInput, match="line 1 is not JSON"):
        read_jsonl(tmp_path / "x.jsonl", torn_ok=True)


def test_a_sentence_and_status_2():
    script = "import benches\nfrom common import errors\ndef main():\n    benches.load('nothing')\nerrors.exit_with_sentence(main)"
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 2 and run.stdout == ""
    assert run.stderr == ("there is no bench nothing: name math500, lcb, mbpp, sciknoweval, arithmetic or your own "
                          "FILE.jsonl.\n")


MATH_ROW = {"id": "1", "problem": "1 + 1?", "verifier": "math", "answer": "2"}
STDIN_TESTS = {"type": "stdin", "public": [["1", "2"]]}
JUDGE_ROW = {"id": "1", "problem": "Why?", "verifier": "judge", "reference": "because"}


def code_row(**changes):
    return {"id": "1", "problem": "Add.", "verifier": "code", "tests": STDIN_TESTS | changes}


@pytest.mark.parametrize("row, sentence", [
    ({}, '"verifier" is missing: it must be one of math, code, judge'),
    ({"id": "1", "verifer": "math"}, '"verifier" is missing, unless "verifer" is meant for it: it must be one of'),
    (MATH_ROW | {"verifier": "maths"}, '"verifier" must be one of'),
    (MATH_ROW | {"verifier": ["math"]}, '"verifier" must be one of'),
    ({"id": "1", "problem": "p", "verifier": "math"}, '"answer" is missing'),
    ({"problem": "p", "verifier": "math", "answer": "2"}, '"id" is missing'),
    ({"id": "1", "verifier": "math", "answer": "2"}, '"problem" is missing'),
    (MATH_ROW | {"anwser": "2"}, 'unknown field "anwser": write "answer", or another name'),
    (MATH_ROW | {"tests": STDIN_TESTS}, 'unknown field "tests"'),
    (MATH_ROW | {"answer": 2.5}, '"answer" must be a string'), (MATH_ROW | {"answer": True}, '"answer" must be a string'),
    (MATH_ROW | {"id": None}, '"id" must be a string'),
    (MATH_ROW | {"problem": " "}, '"problem" is empty'),
    (MATH_ROW | {"problem": "\ud800"}, "half of a surrogate pair"),
    (code_row(public=[["1", "\ud800"]]), "half of a surrogate pair"),
    ({"id": "1", "problem": "p", "verifier": "judge"}, '"reference" is missing'),
    (JUDGE_ROW | {"criterion": "taste"}, '"criterion" must be one of final_result, relation_set'),
    ({"id": "1", "problem": "p", "verifier": "code"}, '"tests" is missing'),
    (code_row() | {"tests": [["1", "2"]]}, '"tests" must be an object'),
    (code_row() | {"imports": [1]}, '"imports" must be a list of lines'),
    (code_row() | {"imports": ["import ("]}, '"imports" must be a list of lines'),
    (code_row(type="stdio"), '"type" of "tests" must be one of stdin, functional, assert'),
    (code_row(timelimit=1), 'unknown field "timelimit" in "tests"'),
    (code_row(time_limit=0), "seconds above 0"),
    (code_row(time_limit=True), "seconds above 0"),
    (code_row(time_limit=1e300), "seconds above 0, at most 3600"),
    (code_row(time_limit="2"), "seconds above 0"),
    (code_row(public=[]), '"public" of "tests" must list at least one test'),
    (code_row(private=None), '"private" of "tests" must be a list'),
    (code_row(public=[["1", 2]]), r'the test \["1", 2\] must be \[input, output\]'),
    (code_row(private=[["1"]]), r"must be \[input, output\]"),
    (code_row(fn_name="f"), "for type functional alone"),
    (code_row(type="functional"), '"fn_name" of "tests" is missing'),
    (code_row(public="1"), '"public" of "tests" must be a list of tests'),
    (code_row(type="functional", fn_name="f", public=[["1 2", "3"]]), "one JSON value a line"),
    (code_row(type="functional", fn_name="f", public=[["1\n", "3"]]), "one JSON value a line"),
    (code_row(type="assert", public=[["1", "2"]]), "must be an assert statement"),
    (code_row(type="assert", public=["assert f(1 == 2"]), "must be an assert statement"),
    (code_row(type="assert", public=["f(1) == 2"]), "must be an assert statement"),  # it could not fail
    (code_row(type="assert", public=["assert " + "-" * 100_000 + "1"]), "must be an assert statement"),
    (code_row(type="functional", fn_name="f", public=[["1", "[" * 100_000]]), "one JSON value a line"),
])
def test_bad_rows(tmp_path, row, sentence):
    path = write(tmp_path / "mine.jsonl", [MATH_ROW | {"id": "first"}, row])
    with pytest.raises(BadInput, match=sentence) as error:
        benches.load(path)
    assert str(error.value).startswith(f"{path} line 2: ") and "\n" not in str(error.value)


def test_all_bad_rows_are_said_at_once(tmp_path):
    lines = [MATH_ROW | {"id": str(number), "answer": "" if number % 2 else "2"} for number in range(50)]
    path = write(tmp_path / "mine.jsonl", lines)
    with pytest.raises(BadInput) as error:
        benches.load(path)
    sentences = [f'{path} line {number}: "answer" is empty.' for number in range(2, 42, 2)]
    assert str(error.value) == "\n".join([*sentences, "And 5 more lines."])


def test_whole_numbers_and_further_fields_of_a_row():
    row = {"id": 7, "problem": "1 + 1?", "verifier": "math", "answer": 2, "level": 5, "source": {"book": "a"}}
    problem = own.problem_from_row(row, "mine", "here")
    assert (problem.id, problem.answer, problem.metadata) == ("7", "2", {"level": 5, "source": {"book": "a"}})
    plain = own.problem_from_row({name: row[name] for name in ("id", "problem", "verifier", "answer")}, "mine", "here")
    assert journal.problem_hash(problem) == journal.problem_hash(plain)


@pytest.mark.parametrize("text, sentence", [
    ('[\n  {"id": "1"}\n]\n', "is JSON over several lines"), ('{\n  "id": "1"\n}\n', "is JSON over several lines"),
    ('{"id": "1", "problem": "p", "id": "2"}\n', 'line 1 is not JSON (the key "id" stands in it twice)')])
def test_files_that_are_no_lines_of_json(tmp_path, text, sentence):
    path = tmp_path / "mine.jsonl"
    path.write_text(text)
    with pytest.raises(BadInput) as error:
        own.load(str(path))
    assert sentence in str(error.value)


def test_own_bench(tmp_path):
    tests = {"type": "functional", "fn_name": "add", "public": [["1\n[2, 3]", "3"]], "private": [["5\n5", "10"]],
             "time_limit": 2.5}
    path = write(tmp_path / "mine.jsonl", [
        MATH_ROW | {"id": "z"}, JUDGE_ROW | {"id": "y"}, code_row(private=[["", ""]]) | {"id": "x"},
        {"id": "w", "problem": "p", "verifier": "code", "tests": tests, "starter_code": "def add(a, b):"},
        {"id": "v", "problem": "p", "verifier": "code", "tests": {"type": "assert", "public": ["assert f(1) == 1"]},
         "imports": ["import math"]}])
    problems = benches.load(path)
    assert [problem.id for problem in problems] == ["z", "y", "x", "w", "v"]  # the order of the lines
    assert {problem.bench for problem in problems} == {"mine"}
    assert problems[0] == Problem("z", "mine", "1 + 1?", "math", answer="2")
    assert problems[1] == Problem("y", "mine", "Why?", "judge", reference="because", criterion="final_result")
    assert problems[2].tests == {"type": "stdin", "fn_name": None, "public": [["1", "2"]], "private": [["", ""]],
                                 "time_limit": 6}
    assert problems[3].tests == tests and problems[3].starter_code == "def add(a, b):"
    assert problems[4].tests == {"type": "assert", "fn_name": None, "public": ["assert f(1) == 1"], "private": [],
                                 "time_limit": 30}
    assert problems[4].imports == ("import math",)
    assert benches.load(path, limit=2) == problems[:2] and benches.load(path, limit=9) == problems


def test_the_problems_that_are_shown(tmp_path):
    """What REPRODUCE.md's "Your own problems" shows loads, and its math and code problems take a right answer."""
    section = (ROOT / "REPRODUCE.md").read_text().split("## Your own problems")[1].split("\n## ")[0]
    (tmp_path / "own.jsonl").write_text(re.search("```json\n(.*?)```", section, re.DOTALL)[1])
    problems = {problem.verifier: problem for problem in benches.load(str(tmp_path / "own.jsonl"))}
    assert set(problems) == {"math", "code", "judge"}
    assert verifiers.verify(problems["math"], f"\\boxed{{{problems['math'].answer}}}").correct == 1
    program = "```python\nprint(2 * int(input()))\n```"
    assert verifiers.verify(problems["code"], program) == verifiers.Verdict(1, 1, "", None)


def test_duplicate_ids_and_empty_files(tmp_path):
    with pytest.raises(BadInput, match='mine.jsonl holds the id "1" 2 times'):
        benches.load(write(tmp_path / "mine.jsonl", [MATH_ROW, JUDGE_ROW]))
    with pytest.raises(BadInput, match="empty.jsonl holds no problem"):
        benches.load(write(tmp_path / "empty.jsonl", []))


@pytest.mark.parametrize("arguments, sentence", [
    ({"bench": "math"}, "there is no bench math: name math500, lcb"),
    ({"bench": "mine.json"}, "there is no bench mine.json"),
    ({"bench": "mine.jsonl"}, "mine.jsonl cannot be read"),
    ({"bench": "mine.jsonl", "path": "x"}, "leave it out with --bench mine.jsonl"),
    ({"bench": "arithmetic", "path": "x"}, "leave it out with --bench arithmetic"),
    ({"bench": "arithmetic", "limit": 0}, "--limit 0 is too small"),
    ({"bench": "arithmetic", "limit": -1}, "--limit -1 is too small"),
    ({"bench": "arithmetic", "split": "val"}, "arithmetic has no split val"),
    ({"bench": "mbpp", "split": "train"}, "mbpp has no split train"),
    ({"bench": "math500", "path": "none.jsonl"}, "none.jsonl cannot be read"),
])
def test_bad_arguments(arguments, sentence):
    with pytest.raises(BadInput, match=sentence):
        benches.load(**arguments)


# ------------------------------------------------------------------------------------------------
# downloads

@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A Hub whose files lie in tmp_path, or that cannot be reached."""
    import huggingface_hub

    def hf_hub_download(repo_id, filename, repo_type, revision, local_files_only=False):
        path = tmp_path / filename
        if local_files_only or not path.exists():
            raise huggingface_hub.errors.LocalEntryNotFoundError("not in the cache")
        return str(path)

    def get_hf_file_metadata(url):
        if not list(tmp_path.iterdir()):
            raise ConnectionError("no network")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", get_hf_file_metadata)
    return tmp_path


def test_no_network(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(hub))
    monkeypatch.setattr(mbpp, "URL", "file:///nowhere/")
    monkeypatch.setattr(sciknoweval, "URL", "file:///nowhere")
    for bench in ("math500", "lcb", "mbpp", "sciknoweval"):
        with pytest.raises(BadInput, match="cannot be fetched .*: try again, name a copy .* with --data, or run"):
            benches.load(bench)


def test_download(hub, monkeypatch):
    path = write(hub / "test.jsonl", [{"unique_id": "u", "problem": "1 + 1?", "answer": "2"}])
    with pytest.raises(BadInput, match="is not the file that the paper used"):
        benches.load("math500")
    monkeypatch.setattr(math500, "SHA256", files.file_sha256(path))
    assert benches.load("math500") == [Problem("u", "math500", "1 + 1?", "math", answer="2")]


@pytest.fixture
def server(monkeypatch, tmp_path):
    """A web server with one file of random bytes; it breaks off at `stop_at`; `ranges` are those that were asked."""
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            http.ranges.append(self.headers["Range"])
            first = int(self.headers["Range"].removeprefix("bytes=").rstrip("-")) if http.resumes else 0
            if first >= len(http.content):
                self.send_error(416)
                return
            self.send_response(206 if http.resumes else 200)
            self.send_header("Content-Length", str(len(http.content) - first))
            self.end_headers()
            self.wfile.write(http.content[first : http.stop_at])

        def log_message(self, *_):
            pass

    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "*")
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.content, http.resumes, http.stop_at, http.ranges = random.Random(1).randbytes(300_000), True, None, []
    http.url = f"http://127.0.0.1:{http.server_port}/file.gz"
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    yield http
    http.shutdown()
    http.server_close()


def test_a_broken_download_goes_on(server, tmp_path):
    for server.stop_at in (100_000, 250_000):
        with pytest.raises(BadInput, match="file.gz cannot be fetched .*broke off.*: try again"):
            files.from_web(server.url, "file.gz")
    server.stop_at = None
    path = files.from_web(server.url, "file.gz")
    assert path.read_bytes() == server.content and server.ranges == ["bytes=0-", "bytes=99999-", "bytes=249999-"]
    assert files.from_web(server.url, "file.gz") == path and len(server.ranges) == 3  # kept
    assert [file.name for file in path.parent.iterdir()] == ["file.gz"]


@pytest.mark.parametrize("resumes", [True, False])  # as GitHub's files do, as its archives do
@pytest.mark.parametrize("held", [1, 299_999, 300_000])
def test_a_download_that_ended_anywhere_goes_on(server, tmp_path, resumes, held):
    server.resumes = resumes
    (tmp_path / "home" / "leaf").mkdir(parents=True)
    (tmp_path / "home" / "leaf" / "file.gz.part").write_bytes(server.content[:held])
    assert files.from_web(server.url, "file.gz").read_bytes() == server.content


def test_two_runs_fetch_a_file_once(server):
    found = []
    runs = [threading.Thread(target=lambda: found.append(files.from_web(server.url, "file.gz"))) for _ in range(4)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert len(found) == 4 and found[0].read_bytes() == server.content and server.ranges == ["bytes=0-"]


# ------------------------------------------------------------------------------------------------
# arithmetic and MATH

def test_arithmetic():
    sets = {split: benches.load("arithmetic", split) for split in ("test", "train")}
    for split, problems in sets.items():
        assert len(problems) == 128 and problems[:5] == benches.load("arithmetic", split, limit=5)
        for number, problem in enumerate(problems):
            a, b = map(int, problem.id.removeprefix("arithmetic/").split("+"))
            wording = [f"Compute {a} + {b}.", f"What is {a} + {b}?", f"Quickly, what is {a} + {b}?"][number % 3]
            assert problem == Problem(problem.id, "arithmetic", wording, "math", answer=str(a + b))
            assert 100 <= a <= 999 and 100 <= b <= 999
            assert arithmetic.split_of(a, b) == arithmetic.split_of(b, a) == split
    kinds = [arithmetic.split_of(a, b) for a in range(100, 200) for b in range(100, 200)]
    assert kinds.count("pretrain") > 0.9 * len(kinds) and set(kinds) == {"test", "train", "pretrain"}


def math_rows(n):
    return [{"unique_id": f"test/algebra/{i}.json", "problem": f"What is {i} + 1?", "answer": str(i + 1)}
            for i in range(n)]


def test_math500_order(tmp_path, capsys):
    path = write(tmp_path / "a.jsonl", math_rows(30))
    problems = benches.load("math500", path=path)
    assert "note: " in capsys.readouterr().err  # not the pinned file
    assert problems == benches.load("math500", path=shuffle(path, tmp_path / "b.jsonl"))
    ids = [int(problem.id[13:-5]) for problem in problems]
    assert sorted(ids) == list(range(30)) and ids != sorted(ids)
    assert problems[:7] == benches.load("math500", path=path, limit=7)
    with pytest.raises(BadInput, match='line 1 has no "unique_id"'):
        benches.load("math500", path=write(tmp_path / "c.jsonl", [{"problem": "p", "answer": "1"}]))


def test_math_train(tmp_path, monkeypatch, hub):
    def row(i, level="Level 5"):
        return {"problem": f"What is {i} + 1?", "level": level, "type": "Algebra",
                "solution": f"Not $\\boxed{{0}}$ but $\\boxed{{\\frac{{{i + 1}}}{{1}}}}$."}

    folder = tmp_path / "folder"
    folder.mkdir()
    path = write(folder / "train.jsonl", [row(i) for i in range(520)] + [row(600, "Level 4"), row(1)]
                 + [row(601) | {"solution": "no box"}, row(602) | {"problem": "What  is 1\n+ 1?"}])
    with pytest.raises(BadInput, match="MATH-500 is needed too, .*: put its test.jsonl beside the --data file"):
        benches.load("math500", "train", path=path)
    test = write(folder / "held_out.jsonl", math_rows(10))
    (folder / "gone.jsonl").symlink_to("nowhere")
    monkeypatch.setattr(math500, "SHA256", files.file_sha256(test))
    monkeypatch.setattr(math500, "BYTES", os.path.getsize(test))
    problems = benches.load("math500", "train", path=path)
    numbers = {int(problem.text.split()[2]) for problem in problems}
    assert len(problems) == len(numbers) == 500 and numbers < set(range(10, 520))
    assert all(problem.answer == f"\\frac{{{int(problem.text.split()[2]) + 1}}}{{1}}" for problem in problems)
    assert {(problem.bench, problem.verifier) for problem in problems} == {("math500", "math")}
    assert problems == benches.load("math500", "train", path=shuffle(path, folder / "other.jsonl"))


@real
def test_real_math(tmp_path, capsys):
    test = benches.load("math500", path=str(REAL / "math500_test.jsonl"))
    assert len(test) == 500 and "note" not in capsys.readouterr().err
    path = REAL / "math_train_level5_partial.jsonl"
    train = benches.load("math500", "train", path=str(path))
    assert len(train) == 500 and capsys.readouterr().err == ""
    assert not {problem.text for problem in test} & {problem.text for problem in train}
    assert all(problem.answer for problem in train)


# ------------------------------------------------------------------------------------------------
# SciKnowEval

def science_row(domain, level, i, **changes):
    return {"prompt": {"default": f"Solve the {domain} task."}, "question": f"{level} number {i}?",
            "answer": f"it is {i}", "answerKey": "", "choices": {"text": [], "label": []}, "type": "open-ended-qa",
            "domain": domain,
            "details": {"level": level, "task": "t", "subtask": "Electrostatics", "source": "s"}} | changes


def science_rows():
    pool = [science_row(domain, level, i) for domain in ("Biology", "Chemistry", "Material", "Physics")
            for level, n in (("L2", 80), ("L5", 130)) for i in range(n)]
    repeated = [science_row("Physics", "L2", "x"), science_row("Physics", "L2", "x", answer="another")]
    closed = [science_row("Physics", "L2", "y", type="mcq-4-choices", answer=None), science_row("Physics", "L3", "z")]
    return pool + repeated + closed[1:], closed[:1]


def test_sciknoweval(tmp_path, capsys):
    path = write(tmp_path / "s.jsonl", science_rows()[0])
    test, train = (benches.load("sciknoweval", split, path=path) for split in ("test", "train"))
    assert "sciknoweval test: 400 of 842 problems, 2 repeated ones dropped." in capsys.readouterr().err
    for domain in ("Biology", "Chemistry", "Material", "Physics"):
        for problems, level, n in ((test, "L2", 75), (test, "L5", 25), (train, "L5", 100), (train, "L2", 0)):
            start = f"Solve the {domain} task.\n\n{level} number "
            assert sum(problem.text.startswith(start) for problem in problems) == n
    texts = [problem.text for problem in test + train]
    assert len(set(texts)) == 800 and not any("number x" in text or "number z" in text for text in texts)
    assert test == benches.load("sciknoweval", path=shuffle(path, tmp_path / "t.jsonl"))
    assert (test[0].bench, test[0].verifier, test[0].criterion) == ("sciknoweval", "judge", "final_result")
    assert test[0].reference == "it is " + test[0].text.split("number ")[1].rstrip("?")


def test_sciknoweval_download(tmp_path, monkeypatch, capsys):
    """The archive of the repository: rows by their label whatever the folder, closed questions passed over."""
    rows, closed = science_rows()
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        for name, part in (("top/raw_data/Physics/L3/a.jsonl", rows[::2] + closed),
                           ("top/raw_data/b.jsonl", rows[1::2]), ("top/README.md", [{"no": "row"}])):
            content = "\n".join(map(json.dumps, part)).encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sciknoweval, "URL", (tmp_path / "a.tar.gz").as_uri())
    problems = benches.load("sciknoweval")
    assert problems == benches.load("sciknoweval", path=write(tmp_path / "s.jsonl", [*rows, *closed, {"type": "open-ended-qa", "details": 1}]))
    assert problems == benches.load("sciknoweval", path=str(tmp_path / "a.tar.gz"))
    (tmp_path / "damaged.tar.gz").write_bytes(gzip.compress(b"no archive"))
    with pytest.raises(BadInput, match="damaged.tar.gz is damaged: delete it and try again"):
        benches.load("sciknoweval", path=str(tmp_path / "damaged.tar.gz"))
    lacking = json.dumps(science_row("Physics", "L5", 1, question=None))
    for line, sentence in (("[1]", "is damaged: delete it"), (lacking, 'a.jsonl has no "question" of the right type')):
        with tarfile.open(tmp_path / "odd.tar.gz", "w:gz") as archive:
            member = tarfile.TarInfo("top/raw_data/a.jsonl")
            member.size = len(line)
            archive.addfile(member, io.BytesIO(line.encode()))
        with pytest.raises(BadInput, match=sentence):
            benches.load("sciknoweval", path=str(tmp_path / "odd.tar.gz"))
    (tmp_path / "a.tar.gz").unlink()
    assert problems == benches.load("sciknoweval")  # kept


def test_a_subtask_of_another_release_is_judged_by_its_result(tmp_path):
    row = science_row("Physics", "L5", 1)
    row["details"]["subtask"] = "Thermodynamics"
    (problem,) = benches.load("sciknoweval", path=write(tmp_path / "s.jsonl", [row]))
    assert problem.criterion == "final_result"


@real
def test_real_sciknoweval(tmp_path, capsys):
    path = REAL / "sciknoweval_v2_open_L2_L5.jsonl"
    test, train = (benches.load("sciknoweval", split, path=str(path)) for split in ("test", "train"))
    assert capsys.readouterr().err == ("sciknoweval test: 400 of 5744 problems, 211 repeated ones dropped.\n"
                                       "sciknoweval train: 400 of 5744 problems, 211 repeated ones dropped.\n")
    assert len(test) == len(train) == 400 and not {p.id for p in test} & {p.id for p in train}
    place = {row["prompt"]["default"] + "\n\n" + row["question"]: (row["domain"], row["details"]["level"])
             for row in read_jsonl(path)}
    for domain in ("Biology", "Chemistry", "Material", "Physics"):
        assert [place[p.text] for p in test].count((domain, "L2")) == 75
        assert [place[p.text] for p in test].count((domain, "L5")) == 25
        assert [place[p.text] for p in train].count((domain, "L5")) == 100
    assert {p.criterion for p in test} == {"relation_set", "composition", "summary", "key_content", "derivation",
                                           "final_result"}
    assert test == benches.load("sciknoweval", path=shuffle(path, tmp_path / "s.jsonl"))


# ------------------------------------------------------------------------------------------------
# LiveCodeBench

def encode(tests):
    """As the release does it: base64 of zlib of a pickle of the JSON text."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests), protocol=4))).decode()


def lcb_row(name, date="2025-03-01", n=4, kind="stdin", **changes):
    tests = [{"input": f"{i}\n[{i}]", "output": str(2 * i), "testtype": kind} for i in range(n)]
    return {"question_title": name, "question_content": f"Double the number of {name}.", "platform": "atcoder",
            "question_id": name, "contest_id": "c", "contest_date": date + "T00:00:00", "difficulty": "easy",
            "starter_code": "class Solution:\n    def f(self, x):\n        " if kind == "functional" else "",
            "public_test_cases": "[]", "private_test_cases": encode(tests),
            "metadata": '{"func_name": "f"}' if kind == "functional" else "{}"} | changes


def test_lcb_dates(tmp_path):
    dates = ["2025-01-31", "2025-02-01", "2025-04-30", "2025-05-01"]
    path = write(tmp_path / "l.jsonl", [lcb_row(date, date) for date in dates])
    assert {problem.id for problem in benches.load("lcb", path=path)} == {"2025-02-01", "2025-04-30"}


def test_lcb_problem(tmp_path):
    path = write(tmp_path / "l.jsonl", [lcb_row("a", n=7), lcb_row("b", kind="functional"), lcb_row("c", n=1)])
    a, b, c = sorted(benches.load("lcb", path=path), key=lambda problem: problem.id)
    assert (a.bench, a.verifier, a.text, a.starter_code) == ("lcb", "code", "Double the number of a.", "")
    assert (a.tests["type"], a.tests["fn_name"], a.tests["time_limit"]) == ("stdin", None, 6)
    assert (len(a.tests["public"]), len(a.tests["private"])) == (3, 4)
    assert sorted(a.tests["public"] + a.tests["private"]) == [[f"{i}\n[{i}]", str(2 * i)] for i in range(7)]
    assert a.tests["public"] == sorted(a.tests["public"]) and a.tests["private"] == sorted(a.tests["private"])
    assert (b.tests["type"], b.tests["fn_name"], b.starter_code[:14]) == ("functional", "f", "class Solution")
    assert (len(c.tests["public"]), c.tests["private"]) == (1, [])
    (train,) = benches.load("lcb", "train", path=write(tmp_path / "t.jsonl", [lcb_row("a", "2024-06-01", n=7)]))
    assert train.tests == {"type": "stdin", "fn_name": None, "private": [], "time_limit": 6,
                           "stop_at_first_failure": True, "public": [[f"{i}\n[{i}]", str(2 * i)] for i in range(7)]}


def test_lcb_split_is_the_problems_own(tmp_path):
    """Neither the other problems nor the order of the file move a problem's public tests."""
    rows = [lcb_row(name, n=6) for name in "abcdef"]
    path = write(tmp_path / "l.jsonl", rows)
    problems = {problem.id: problem for problem in benches.load("lcb", path=path)}
    assert list(problems) == [p.id for p in benches.load("lcb", path=shuffle(path, tmp_path / "m.jsonl"))]
    assert benches.load("lcb", path=write(tmp_path / "n.jsonl", rows[3:4])) == [problems["d"]]
    assert len({json.dumps(problem.tests["public"]) for problem in problems.values()}) > 1
    assert [p.id for p in benches.load("lcb", path=path, limit=2)] == list(problems)[:2]


@pytest.mark.parametrize("split,date,papers", [("test", "2025-03-01", 131), ("train", "2024-06-01", 478)])
def test_lcb_counts_are_compared_with_the_papers(tmp_path, capsys, split, date, papers):
    def report(n, limit=None):
        rows = [lcb_row(str(i), date, n=1) for i in range(n)]
        benches.load("lcb", split, write(tmp_path / "l.jsonl", rows), limit)
        return capsys.readouterr().err
    assert report(papers) == f"lcb {split}: {papers} problems.\n"
    assert report(papers - 1) == f"lcb {split}: {papers - 1} problems. The paper has {papers}.\n"
    assert report(papers + 1) == f"lcb {split}: {papers + 1} problems. The paper has {papers}.\n"
    assert report(3, limit=2) == f"lcb {split}: 2 problems.\n"  # a user's wish is no difference


def test_lcb_train_filters(tmp_path, capsys):
    folder = tmp_path / "lcb"
    folder.mkdir()
    write(folder / "test6.jsonl", [lcb_row("t", question_content="The  same\ntext."), lcb_row("late", "2025-05-02")])
    write(folder / "test2.jsonl", [lcb_row("a", "2024-06-01"), lcb_row("t", "2024-06-01")])
    write(folder / "test3.jsonl", [lcb_row("b", "2024-06-01", question_content="The same text."),
                                   lcb_row("a", "2024-06-01", question_content="Other."), lcb_row("c", "2024-06-01")])
    write(folder / "test4.jsonl", [
        lcb_row("d", "2024-06-01", question_content="Double the number  of c."), lcb_row("e", "2024-06-01", n=0),
        lcb_row("f", "2024-06-01", kind="functional", metadata="{}"), lcb_row("g", "2024-06-01", kind="other"),
        lcb_row("h", "2024-06-01", kind="functional", private_test_cases=json.dumps(
            [{"input": "1 2", "output": "3", "testtype": "functional"}]))])
    write(folder / "test5.jsonl", [lcb_row("i", "2025-01-10", kind="functional")])
    problems = benches.load("lcb", "train", path=str(folder))
    assert sorted(problem.id for problem in problems) in (["a", "c", "i"], ["a", "d", "i"])
    report = capsys.readouterr().err
    assert report.startswith("lcb train: 3 problems, ") and report.count("\n") == 1
    for part in ("2 in the test set dropped", "2 repeated dropped", "4 failing the static checks dropped"):
        assert part in report
    assert [problem.id for problem in benches.load("lcb", path=str(folder))] == ["t"]
    (folder / "test3.jsonl").unlink()
    with pytest.raises(BadInput, match="test3.jsonl cannot be read"):
        benches.load("lcb", "train", path=str(folder))


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


@pytest.mark.parametrize("content", [
    pickle.dumps(Evil()), pickle.dumps(float), pickle.dumps(os.getcwd), pickle.dumps(["[]"]), pickle.dumps(b"x"),
    pickle.dumps(None), pickle.dumps("[1]")[:-2], pickle.dumps("no JSON"), b"", b"cos\nmkdir\n(S'evil'\ntR."])
def test_lcb_pickles_that_are_no_text(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    row = lcb_row("q", private_test_cases=base64.b64encode(zlib.compress(content)).decode())
    with pytest.raises(BadInput, match="^q: its metadata or private_test_cases cannot be read .*: fetch the file "
        "again.$"):
        benches.load("lcb", path=write(tmp_path / "l.jsonl", [row]))
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("changes", [{"private_test_cases": ""}, {"private_test_cases": "[{]"}, {"metadata": "{"},
                                     {"private_test_cases": '[{"input": 1}]'}, {"private_test_cases": "[1]"}])
def test_lcb_damaged_rows(tmp_path, changes):
    with pytest.raises(BadInput, match="^q: its metadata or private_test_cases cannot be read"):
        benches.load("lcb", path=write(tmp_path / "l.jsonl", [lcb_row("q", **changes)]))


def test_lcb_plain_json_tests(tmp_path):
    tests = [{"input": "1", "output": "2", "testtype": "stdin"}]
    row = lcb_row("q", private_test_cases=json.dumps(tests))
    (problem,) = benches.load("lcb", path=write(tmp_path / "l.jsonl", [row]))
    assert problem.tests["public"] == [["1", "2"]]


@real
def test_real_lcb(tmp_path):
    path = REAL / "lcb_real_full_row.jsonl"
    (row,) = read_jsonl(path)
    (problem,) = benches.load("lcb", "train", path=str(path))
    assert problem.id == "1873_A" and problem.tests["type"] == "stdin" and len(problem.tests["public"]) == 4
    tests = [{"input": given, "output": out, "testtype": "stdin"} for given, out in problem.tests["public"]]
    assert encode(tests) == row["private_test_cases"]
    fixture = benches.load("lcb", "train", path=str(REAL / "lcb_derived_fixture.jsonl"))
    assert sorted(p.tests["type"] for p in fixture) == ["functional"] * 10 + ["stdin"] * 10
    with pytest.raises(BadInput, match='line 1 has no "private_test_cases"'):
        benches.load("lcb", "train", path=str(REAL / "lcb_release_v1_no_private.jsonl"))


# ------------------------------------------------------------------------------------------------
# MBPP+

CODE = (
    "import math\nfrom re import (sub,\n                split)\ndef helper(x):\n  return x\n\ndef f(a, b={1: 2}, "
    "c='x:y'): return a\n")


def mbpp_rows(*numbers, plus=((1, 2),)):
    hub = [{"task_id": n, "code": CODE, "prompt": f"Write function {n}.", "source_file": "s", "test_imports": [],
            "test_list": [f"assert f({n}) == {i}" for i in range(5)], "test": ""} for n in numbers]
    evalplus = [{"task_id": f"Mbpp/{n}", "prompt": '"""\n"""\n', "entry_point": "f", "canonical_solution": CODE,
                 "base_input": [], "plus_input": plus, "atol": 0, "contract": "", "assertion": ""} for n in numbers]
    return hub, evalplus


def test_mbpp(tmp_path, capsys):
    hub, evalplus = mbpp_rows(10, 11, 12)
    hub[0]["test_imports"] = ["import math"]
    first, second = write(tmp_path / "mbpp_hub.jsonl", hub), write(tmp_path / "mbpp_plus.jsonl", evalplus)
    problems = benches.load("mbpp", path=first)
    assert capsys.readouterr().err.count("note: ") == 2  # neither is the pinned file
    assert problems == benches.load("mbpp", path=second) == benches.load("mbpp", path=str(tmp_path))
    assert sorted(problem.id for problem in problems) == ["Mbpp/10", "Mbpp/11", "Mbpp/12"]
    assert next(problem for problem in problems if problem.id == "Mbpp/10") == Problem(
        "Mbpp/10", "mbpp", "Write function 10.", "code", imports=("import math",),
        header="import math\nfrom re import sub, split\ndef f(a, b={1: 2}, c='x:y'):", tests={
            "type": "assert", "fn_name": None, "private": [], "time_limit": 30,
            "public": ["assert f(10) == 0", "assert f(10) == 1", "assert f(10) == 2"],
            "plus": {"entry_point": "f", "canonical_solution": CODE, "inputs": [[1, 2]], "atol": 0}})
    write(tmp_path / "excerpt.jsonl", hub[1:])
    assert sorted(p.id for p in benches.load("mbpp", path=str(tmp_path / "excerpt.jsonl"))) == ["Mbpp/11", "Mbpp/12"]
    assert problems == benches.load("mbpp", path=shuffle(first, tmp_path / "shuffled.jsonl"))
    os.remove(second)
    for path in (first, str(tmp_path)):
        with pytest.raises(BadInput, match=r"MbppPlus.jsonl.gz \(with the column plus_input\) is not there"):
            benches.load("mbpp", path=path)


def test_mbpp_tasks_of_one_prompt_have_an_order(tmp_path):
    """It decides what --limit takes, so the hashes of a process must not; a set of texts would follow them."""
    numbers = [7, 9, 71, 104, 141, 150, 569, 700, 801]
    for name, rows in zip("hp", mbpp_rows(*reversed(numbers))):
        write(tmp_path / f"mbpp_{name}.jsonl", [row | {"prompt": "Write a function to sort a list."} for row in rows])
    assert [p.id for p in benches.load("mbpp", path=str(tmp_path))] == [f"Mbpp/{number}" for number in numbers]


def test_mbpp_download(tmp_path, monkeypatch):
    files = {}
    for (name, (_, fields)), rows in zip(mbpp.FILES.items(), mbpp_rows(10)):
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        (tmp_path / name).write_bytes(gzip.compress(content))
        files[name] = (hashlib.sha256(content).hexdigest(), fields)
    monkeypatch.setattr(mbpp, "URL", tmp_path.as_uri() + "/")
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    with pytest.raises(BadInput, match="is not the file that the paper used"):
        benches.load("mbpp")
    monkeypatch.setattr(mbpp, "FILES", files)
    assert [problem.id for problem in benches.load("mbpp")] == ["Mbpp/10"]
    assert [problem.id for problem in benches.load("mbpp", path=str(tmp_path / name))] == ["Mbpp/10"]  # a copy in gzip


@pytest.mark.parametrize("number, given, want", [
    (10, [[1, [2]], 3], [[1, [2]], 3]),
    (2, [[1, 2], [3]], [(1, 2), (3,)]),
    (63, [[[1, 2], [3]]], [[(1, 2), (3,)]]),
    (75, [[[1, 2], [3]], 4], [[(1, 2), (3,)], 4]),
    (106, [[1, 2], [3, [4]]], [[1, 2], (3, [4])]),
    (250, [[1, 2], 3], [(1, 2), 3]),
    (259, [[[1, 2], [3]], [[4]]], [((1, 2), (3,)), ((4,),)]),
    (278, [[1, [2, [3]], 4]], [(1, (2, [3]), 4)]),
    (580, [[1, [2, [3, []]]]], [(1, (2, (3, ())))]),
    (124, ["0", "1j"], [0.0, 1j]),
    (252, ["(1+2j)"], [1 + 2j]),
    (722, [{"a": [1.5, 2]}, 3, 4], [{"a": (1.5, 2)}, 3, 4]),
])
def test_mbpp_arguments(tmp_path, number, given, want):
    for name, rows in zip("hp", mbpp_rows(number, plus=[given])):
        write(tmp_path / f"mbpp_{name}.jsonl", rows)
    (problem,) = benches.load("mbpp", path=str(tmp_path))
    assert repr(problem.tests["plus"]["inputs"]) == repr([want])


@pytest.mark.parametrize("hub, plus, sentence", [
    ({"task_id": "ten"}, {"task_id": "ten"}, 'has no "task_id" of the right type'),
    *((hub, plus, "^mbpp's task 10 cannot be read .*: fetch the files again.$") for hub, plus in (
        ({"code": "def f("}, {}), ({}, {"entry_point": "g"}), ({}, {"plus_input": [1]})))])
def test_mbpp_damaged_rows(tmp_path, hub, plus, sentence):
    for name, (row,), changes in zip("hp", mbpp_rows(10), (hub, plus)):
        write(tmp_path / f"mbpp_{name}.jsonl", [row | changes])
    with pytest.raises(BadInput, match=sentence):
        benches.load("mbpp", path=str(tmp_path))


@pytest.mark.parametrize("code, want", [
    ("def f(x): return x", "def f(x):"),
    ("def f(x) :\n  return {1: 2}", "def f(x) :"),
    ("def f(x: dict[str, int] = {'a': 1},\n      key=lambda y: y) -> list[int]:  # doubles: all\n  pass",
        "def f(x: dict[str, int] = {'a': 1},\n      key=lambda y: y) -> list[int]:"),
    ("\nimport re, os\n\nx = ':'\ndef g(): pass\ndef f(s=':', t=')'):\n\treturn s",
        "import re, os\ndef f(s=':', t=')'):"),
])
def test_mbpp_header(code, want):
    assert mbpp.header_of(code, "f") == want


@real
def test_real_mbpp(capsys):
    path = REAL / "mbppplus_v0.2.0_hf.jsonl"
    problems = {int(problem.id[5:]): problem for problem in benches.load("mbpp", path=str(path))}
    assert capsys.readouterr().err == "" and len(problems) == 378  # the pinned files
    assert sum(len(problem.tests["plus"]["inputs"]) for problem in problems.values()) == 39841
    for row in read_jsonl(path):
        problem = problems[row["task_id"]]
        assert problem.tests["public"] == row["test_list"][:3] and problem.imports == tuple(row["test_imports"])
        assert problem.header.endswith(":") and compile(problem.header + "\n    pass", "", "exec")
        # the Hub's own test program holds the same inputs as Python literals
        program = row["test"][row["test"].index("\ninputs = ") + 1 :].split("\n")[0]
        names = {"inf": math.inf, "set": set}
        exec(program, names)
        inputs = [list(arguments) for arguments in names["inputs"]]
        if row["task_id"] in (124, 252):  # complex numbers: the sign of a zero is written in more than one way
            assert all(arguments in inputs for arguments in problem.tests["plus"]["inputs"]), row["task_id"]
        else:
            assert set(map(repr, problem.tests["plus"]["inputs"])) <= set(map(repr, inputs)), row["task_id"]
