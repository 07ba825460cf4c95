"""A verifier of the user's own: a function in a Python file beside the bench."""
import json

import pytest

import benches
import prompts
import verifiers
from benches import grader
from common import journal
from common.errors import BadInput

MINE = '''
def right(row, response):
    return response.strip() == row["want"]

def hinted(row, response):
    return len(response.split()) == row["words"], f"{len(response.split())} words, asked were {row['words']}"

def broken(row, response):
    return row["no such field"]

def odd(row, response):
    return "yes"

number = 7
'''


@pytest.fixture
def bench(tmp_path):
    """bench(verifier, **fields) -> the Problem of a bench whose one row is that."""
    (tmp_path / "mine.py").write_text(MINE)

    def load(verifier, **fields):
        row = {"id": "a", "problem": "Say it.", "verifier": verifier, **fields}
        (tmp_path / "bench.jsonl").write_text(json.dumps(row) + "\n")
        return benches.load(str(tmp_path / "bench.jsonl"))[0]
    grader.functions.cache_clear()
    return load


@pytest.fixture
def graders():
    graders = verifiers.Graders(1)
    yield graders
    graders.close()


def test_its_function_gives_the_verdict(bench, graders):
    x = bench("mine.py:right", want="rain", level=3)
    assert x.metadata == {"want": "rain", "level": 3} and x.text == "Say it."
    assert graders.submit(x, " rain\n").result() == verifiers.Verdict(1, 1, "", None)
    assert graders.submit(x, "snow").result() == verifiers.Verdict(0, 0, "", None)
    x = bench("mine.py:hinted", words=2)
    assert graders.submit(x, "one two").result() == verifiers.Verdict(1, 1, "2 words, asked were 2", None)
    wrong = "1 words, asked were 2"
    assert graders.submit(x, "one").result() == verifiers.Verdict(0, 0, wrong, wrong)


def test_one_that_fails_is_a_fault(bench, graders, tmp_path):
    verdict = graders.submit(bench("mine.py:broken"), "x").result()
    assert (verdict.reward, verdict.correct) == (0, 0)
    assert verdict.fault == f"broken of {tmp_path / 'mine.py'} failed: KeyError: 'no such field'"
    verdict = graders.submit(bench("mine.py:odd"), "x").result()
    assert verdict.fault == (f"odd of {tmp_path / 'mine.py'} gave 'yes': return True, False, or one of them with a "
                             "feedback text.")


def test_what_is_no_function_is_said_before_a_run(bench, tmp_path):
    for verifier in ("mine.py:number", "mine.py:none"):
        with pytest.raises(BadInput, match="has no function"):
            bench(verifier)
    with pytest.raises(BadInput, match="line 1: .*gone.py cannot be used as a verifier .FileNotFoundError"):
        bench("gone.py:grade")
    (tmp_path / "bad.py").write_text("1 / 0\n")
    with pytest.raises(BadInput, match="ZeroDivisionError: division by zero"):
        bench("bad.py:grade")
    with pytest.raises(BadInput, match='"verifier" must be one of math, code, judge, or a FILE.py:FUNCTION'):
        bench("mine.txt:grade")
    with pytest.raises(BadInput, match='"problem" must be a string that is not empty'):
        bench("mine.py:right", problem=" ")


def test_a_changed_reference_is_another_problem(bench):
    hashes = {journal.problem_hash(bench("mine.py:right", want=want)) for want in ("a", "b", "a")}
    assert len(hashes) == 2


def test_its_prompts(bench):
    """The problem is the prompt; the feedback stands below the verdict."""
    x = bench("mine.py:right")
    opening = [{"role": "user", "content": "Say it."}]
    for family in ("qwen3", "olmo3"):
        assert prompts.opening(x, family) == opening
    *shown, answer, turn = prompts.carry(x, "qwen3", "no", 0, "1 word")
    assert shown == opening and answer == {"role": "assistant", "content": "no"}
    assert turn["content"] == ("Your previous answer was checked against the reference. Your previous answer was judged "
                               f"incorrect.\n1 word\n\n{prompts.CHECKED_IMPROVE}")
    assert prompts.restart(x, "qwen3", "draft")[-1]["content"] == prompts.BLIND["own"]


def test_its_file_runs_once(bench, tmp_path):
    (tmp_path / "mine.py").write_text("print('loaded', file=open('loaded', 'a'))\ndef right(row, response): return 1\n"
                                      .replace("'loaded', 'a'", f"{str(tmp_path / 'loaded')!r}, 'a'"))
    rows = [{"id": str(number), "problem": "p", "verifier": "mine.py:right"} for number in range(5)]
    (tmp_path / "five.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    problems = benches.load(str(tmp_path / "five.jsonl"))
    assert [grader.grade(x.tests, "") for x in problems] == [(1, "")] * 5
    assert (tmp_path / "loaded").read_text() == "loaded\n"
