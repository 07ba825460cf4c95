"""MATH: the last box, what counts as equal, and the processes that decide it."""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import answers
from common.math_text import squeeze
import verifiers
from benches.problem import Problem
from common.errors import BadInput, exit_with_sentence
from sandbox import workers

ROOT = Path(__file__).parent.parent
MATH500 = Path(os.environ.get("LEAF_DATA", "none"), "math500_test.jsonl")
TOWER = r"\boxed{10^{10^{10^{10}}}}"


def problem(answer):
    return Problem(id="p", bench="own", text="?", verifier="math", answer=answer)


# ---- The box --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text, content", [
    (r"so $\boxed{7}$.", "7"),
    (r"first $\boxed{3}$, but no: $\boxed{7}$", "7"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{ 4\,000 }", r"4\,000"),
    (r"\boxed {8}", "8"),
    ("\\boxed{\n8\n}", "8"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),  # an escaped brace opens no group
    (r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}} and more }", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    (r"\boxed{x = \boxed{5}}", "5"),
    (r"\fbox{9}", "9"),
    (r"\boxed{\fbox{9}}", "9"),
    (r"so $\boxed 5$ apples", "5"),
    (r"so \(\boxed 5\) apples", "5"),
    (r"\boxed\frac12", r"\frac12"),
    ("\\boxed 12.\nDone", "12"),
    ("the answer is 42", None),
    ("", None),
    (r"\boxed{}", None),
    (r"\boxed{  }", None),
    (r"$\boxed{3}$, then $\boxed{}$", None),
    (r"\boxed{3}, then \boxed{\frac{1}{2}", None),  # the last one decides, broken or not
    (r"\boxed", None),
    (r"the \boxedtext{5} command", None),
    (r"boxed{5}", None),
])
def test_last_boxed(text, content):
    assert answers.last_boxed(text) == content


# ---- What counts as equal -------------------------------------------------------------------------------------------

CASES = [  # kind, reference, right answers, wrong answers
    ("fraction", r"\frac{3}{8}", ["3/8", "0.375", ".375", r"\dfrac{3}{8}", r"\tfrac38", r"\frac{6}{16}", r"\frac 38"],
     [r"\frac{8}{3}", "3", "38", r"-\frac{3}{8}", "0.38"]),
    ("negative fraction", r"-\frac{3}{8}", [r"\frac{-3}{8}", r"\frac{3}{-8}", "-3/8"], [r"\frac38"]),
    ("thirds", r"\frac{2}{3}", ["0.6666667"], ["0.67", "0.66"]),
    ("decimal", "0.35", [r"\frac{7}{20}", ".35", "0.350"], ["3.5", "0.36"]),
    ("small decimal", ".0000213", [r"2.13\times 10^{-5}"], [".0000214", r"2.14\times 10^{-5}"]),  # equal at 6 decimals
    ("mixed number", r"2\frac{3}{4}", [r"\frac{11}{4}", "2.75", r"2 \frac34"], [r"\frac{3}{4}", r"\frac{3}{2}"]),
    ("improper fraction", r"\frac{11}{4}", [r"2\frac{3}{4}", r"2 \tfrac34"], [r"\frac{4}{11}"]),
    ("surd", r"2\sqrt{3}", [r"\sqrt{12}", r"2\sqrt3", r"2 \cdot \sqrt{3}"], [r"\sqrt{6}", r"\sqrt{3}", "3.46"]),
    ("surd below", r"\frac{\sqrt{5}}{5}", [r"\frac{1}{\sqrt{5}}"], [r"\frac{\sqrt{5}}{25}"]),
    ("sum of surds", r"2+\sqrt{3}", [r"\sqrt{3} + 2", r"\frac{1}{2-\sqrt{3}}"], [r"2-\sqrt{3}"]),
    ("integer", "9", [r"\sqrt{81}", "3^2", "4+5", "9.0", "+9", r"\text{9}", r"\mathbf{9}", "$9$", "9."],
     ["-9", "90", "9.5", "10^9", "five", r"\text{There are 9 of them}"]),
    ("negative", "-9", ["−9", "–9", r"-\sqrt{81}"], ["9"]),
    ("Unicode", r"x^2+2\sqrt{3}", ["x²+2√3", "x^2+2√{3}", "x²+2√ 3"], ["x³+2√3", "x²+2√5"]),
    ("roots", r"\frac{\sqrt{x+1}}{2}", [r"\frac{√{x+1}}{2}", "√{x+1}/2"], [r"\frac{√x+1}{2}"]),
    ("a root of a part", r"\frac{\sqrt{5}i}{2}", [r"\frac{√5i}{2}"], [r"\frac{√{5i}}{2}"]),
    ("a decimal root", "0.5", ["√0.25"], ["√1.5"]),
    ("powers", "10^{23}", ["10²³"], ["100³"]),
    ("infinity", r"(-\infty,3]", ["(-∞,3]"], ["(-∞,4]", "(∞,3]"]),
    ("empty set", r"\emptyset", [r"\varnothing"], ["0"]),
    ("punctuation", "9", ["9,", "9;", r"9\\", r"9\newline"], ["8,"]),
    ("zero", "0", ["-0", "0.0"], [r"\emptyset", r"1\,000", "1"]),
    ("factorial", "720", ["6!", r"\binom{720}{1}"], ["5!"]),
    ("pi", r"6\pi", [r"2 \cdot 3\pi", "6π"], ["18.85", r"\frac{6}{\pi}"]),
    ("logarithm", r"\log_2 5", [r"\frac{\ln 5}{\ln 2}"], [r"\log_5 2"]),
    ("thousands", "45,600", ["45600", r"45,\!600", r"45{,}600"], ["45,60", "456000", "45"]),
    ("thousands, spaced", "45600", [r"45\,600", "45 600", "45,600"], ["45"]),
    ("power of ten", "2000000", [r"2 \times 10^6", "2,000,000", r"2{,}000{,}000"], [r"2 \times 10^5"]),
    ("money", r"\$45,\!600", ["45600", "45,600", r"\$45,600"], [r"\$45,700"]),
    ("cents", "12.50", [r"\$12.50", "12.5"], ["12.05"]),
    ("unit", r"8\text{ cm}", ["8", "8 cm", r"8\,\text{cm}"], ["9", r"9\text{ cm}"]),
    ("unit in the answer", "8", [r"8\text{ cm}", r"8 \, \text{m/s}", r"8\mathrm{~cm}", r"8~\text{cm}", "8 ways"],
     [r"9\text{ ways}"]),
    ("square unit", r"8\mbox{ inches}^2", ["8", "8 square inches"], ["64"]),
    ("percent", r"35\%", ["35", "0.35", r"\frac{7}{20}"], [r"30\%", "3.5"]),
    ("percent in the answer", "35", [r"35\%"], [r"3.5\%"]),
    ("degrees", r"70^\circ", ["70", r"70^{\circ}", r"70\text{ degrees}", "70°", r"70\degree", "70^°"],
     [r"60^\circ", "7"]),
    ("radians", r"\frac{\pi}{3}", [r"\pi/3"], [r"60^\circ"]),
    ("text", r"\text{Maria}", ["Maria", r"\textbf{Maria}", r"\mathrm{Maria}", "maria"], [r"\text{Marta}", "M"]),
    ("two words", r"\text{May 3}", [r"\text{May  3}"], ["3", r"\text{May 4}"]),
    ("parity", r"\text{odd}", ["Odd"], [r"\text{even}"]),
    ("choice", r"\text{(D)}", ["D", "(D)", r"\textbf{(D)}", r"\text{D}"], [r"\text{(B)}", "A"]),
    ("bare choice", "D", [r"\text{D}", r"\text{(D)}"], ["C"]),
    ("pair", "(2, -7)", ["(2,-7)", r"\left( 2, -7 \right)"],
     ["(-7,2)", "(2,7)", "(2,-7,0)", r"\begin{pmatrix}2\\-7\end{pmatrix}"]),
    ("polar", r"\left( 2, \frac{\pi}{3} \right)", [r"(2, \pi/3)"], [r"(2, \pi/6)"]),
    ("list", "2, 6, 11", ["11, 2, 6", r"2, 6 \text{ and } 11"], ["2, 6", "2, 6, 12", "2"]),
    ("set", r"\{2,6\}", ["6,2", r"\{6, 2\}", "x=2, x=6"], ["2", "2,6,7"]),
    ("one of two", "2", ["x = 2"], ["2,6", r"2 \text{ or } 6"]),
    ("plus and minus", "-6,6", [r"\pm 6"], ["6", r"\pm 5"]),
    ("conjugates", r"3 \pm \sqrt{7}", [r"3+\sqrt{7}, 3-\sqrt{7}"], [r"3+\sqrt{7}"]),
    ("interval", "[3,8)", ["[3, 8)", r"\left[3,8\right)", r"x \in [3,8)"], ["(3,8)", "[3,8]", "[8,3)", "[3,9)"]),
    ("union", r"(-\infty, 3) \cup (8,\infty)", [r"x \in (-\infty,3)\cup(8,\infty)"],
     [r"(-\infty,3]\cup(8,\infty)", "(3,8)"]),
    ("inequality", "x>3", ["3<x"], [r"x \ge 3", "x<3"]),
    ("assignment", "x=6", ["6", "x = 6"], ["x=7", "y=6"]),
    ("asked for a number", "6", ["x=6", "x = 2 + 4 = 6"], ["x=7"]),
    ("line", "y=4x-1", ["y=-1+4x", "4x-1"], ["y=4x+1"]),
    ("equation", "3x-y+2=0", ["6x-2y+4=0", "3x-y=-2"], ["3x-y+3=0"]),
    ("polynomial", "x^2-9", ["(x-3)(x+3)", "-9+x^2"], ["(x-3)^2"]),
    ("factored", "n(3n+2)", ["3n^2+2n"], ["3n^2+2"]),
    ("complex", "7-2i", ["-2i+7"], ["7+2i"]),
    ("function", r"\tan x", [r"\frac{\sin x}{\cos x}"], [r"\cot x"]),
    ("letters", "a-b", ["-b+a"], ["b-a"]),
    ("vector", r"\begin{pmatrix} 3 \\ 1/2 \end{pmatrix}", [r"\begin{pmatrix}3\\ \frac{1}{2}\end{pmatrix}"],
     [r"\begin{pmatrix} 1/2 \\ 3 \end{pmatrix}", r"\begin{pmatrix} 3 & 1/2 \end{pmatrix}"]),
    ("matrix", r"\begin{pmatrix} 0 & 1 \\ 2 & 3 \end{pmatrix}", [r"\begin{bmatrix} 0 & 1 \\ 2 & 3 \end{bmatrix}"],
     [r"\begin{pmatrix} 0 & 1 \\ 2 & 4 \end{pmatrix}"]),
    ("base", "413_7", ["413_{7}", "413"], ["413_{8}", "414_7", "206"]),  # math-verify alone takes 413_8
]


@pytest.mark.parametrize("gold, right, wrong", [pytest.param(*case[1:], id=case[0]) for case in CASES])
def test_equal(gold, right, wrong):
    assert [answer for answer in [gold, *right] if not answers.math_equal(gold, answer)] == []
    assert [answer for answer in wrong if answers.math_equal(gold, answer)] == []


@pytest.fixture(scope="module")
def math500():
    if not MATH500.exists():
        pytest.skip("LEAF_DATA names no folder with math500_test.jsonl")
    return [json.loads(line) for line in open(MATH500)]


def test_references_equal_themselves_and_their_solutions(math500):
    for row in math500:
        assert answers.math_equal(row["answer"], row["answer"]), row["answer"]
        assert squeeze(answers.last_boxed(row["solution"])) == squeeze(row["answer"])


def test_other_references_are_wrong(math500):
    """Every reference as the answer to another problem. One pair is right: `x=5` where 5 is asked for."""
    golds = [row["answer"] for row in math500]
    pairs = [pair for pair in zip(golds, golds[7:] + golds[:7]) if pair[0] != pair[1]]
    assert len(pairs) > 450
    assert {pair for pair in pairs if answers.math_equal(*pair)} <= {("5", "x=5"), ("x=5", "5")}


def test_references_with_another_digit_are_wrong(math500):
    digit = random.Random(0)
    for gold in sorted({row["answer"] for row in math500}):
        places = [i for i, character in enumerate(gold.split("_")[0].split(r"\mbox")[0]) if character.isdigit()]
        if places:
            place = digit.choice(places)
            answer = gold[:place] + str((int(gold[place]) + 1) % 10) + gold[place + 1 :]
            assert not answers.math_equal(gold, answer), (gold, answer)


# ---- The verdict ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gold, response, want", [
    ("7", r"so $\boxed{7}$", verifiers.Verdict(1, 1, "", "7")),
    (r"\frac{1}{4}", r"so $\boxed{ 1 / 4 }$", verifiers.Verdict(1, 1, "", "1/4")),
    ("7", "so \\boxed{x \n + 1}", verifiers.Verdict(0, 0, "", "x+1")),
    ("42", "The answer is 42.", verifiers.Verdict(0, 0, "", None)),
    ("42", r"\boxed{}", verifiers.Verdict(0, 0, "", None)),
    ("42", r"\boxed{42", verifiers.Verdict(0, 0, "", None)),
    (r"\unreadable{ ] 1", r"\boxed{\unreadable{ ] 1}}", verifiers.Verdict(0, 0, "", r"\unreadable{]1}")),
    (r"\odd{a} ]", r"\boxed{\odd {a}]}", verifiers.Verdict(1, 1, "", r"\odd{a}]")),  # the same text, whatever it means
    ("7", r"\boxed{" + "7 + " * 3000 + "7}", verifiers.Verdict(0, 0, "", "7+" * 3000 + "7")),
    ("7", "\\boxed{\ud800 \x00}", verifiers.Verdict(0, 0, "", "\ud800\x00")),
])
def test_verdict(gold, response, want):
    assert verifiers.verify(problem(gold), response) == want
    assert verifiers.verify(problem(gold), response, truncated=True) == want  # MATH's verdict does not depend on it


def test_a_tower_of_powers_is_wrong():
    verdict = verifiers.verify(problem("3"), TOWER)
    assert (verdict.reward, verdict.correct, verdict.signature) == (0, 0, "10^{10^{10^{10}}}")


def test_a_judge_needs_an_engine():
    with pytest.raises(BadInput, match="needs an engine"):
        verifiers.verify(Problem(id="p", bench="own", text="?", verifier="judge", reference="a"), "b")


# ---- The processes --------------------------------------------------------------------------------------------------

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def graders():
    graders = verifiers.Graders(workers=1)
    yield graders
    graders.close()


def right(graders):
    """Grades a right answer that is not the reference's text, so that the process is asked; -> its pid."""
    assert graders.submit(problem("7"), r"\boxed{14/2}").result() == verifiers.Verdict(1, 1, "", "14/2")
    return graders.math_workers[0].process.pid


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


def cpu_ticks(pid):
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))


@linux
def test_a_worker_is_a_small_process_of_its_own(graders):
    pid = right(graders)
    assert right(graders) == pid  # it stays
    mapped = Path(f"/proc/{pid}/maps").read_text()
    assert "torch" not in mapped and "numpy" not in mapped
    assert os.getsid(pid) == pid  # Ctrl-C in our terminal does not reach it
    assert str(workers.MEMORY_BYTES) in Path(f"/proc/{pid}/limits").read_text()


@linux
def test_killed_while_idle(graders):
    pid = right(graders)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid))
    assert right(graders) != pid  # no answer suffers from it


@linux
def test_killed_while_grading(graders):
    pid = right(graders)
    before, future = cpu_ticks(pid), graders.submit(problem("3"), TOWER)
    wait_until(lambda: cpu_ticks(pid) > before + 10)
    os.kill(pid, signal.SIGKILL)
    assert future.result().reward == 0 and future.result().fault == "the math-verify process died with status -9"
    assert right(graders) != pid


@linux
def test_hung(graders, monkeypatch):
    pid = right(graders)
    monkeypatch.setattr(workers, "WALL_SECONDS", 0.5)
    os.kill(pid, signal.SIGSTOP)
    verdict = graders.submit(problem("7"), r"\boxed{14/2}").result()
    assert verdict == verifiers.Verdict(0, 0, "", "14/2", "math-verify gave no verdict within 0.5 s and was killed")
    assert not alive(pid)
    monkeypatch.setattr(workers, "WALL_SECONDS", 60)
    right(graders)


def test_too_much_cpu(graders, monkeypatch):
    # Far below math-verify's own limit, which is of wall time: the kernel's comes first on a loaded machine, too.
    monkeypatch.setattr(workers, "CPU_SECONDS", 0.3)
    verdict = graders.submit(problem("3"), TOWER).result()
    assert (verdict.reward, verdict.correct) == (0, 0)
    assert verdict.fault == "math-verify used more than 0.3 s of CPU time and was killed"
    right(graders)


def test_no_math_verify_is_a_sentence(graders, monkeypatch, tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # without site-packages
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(BadInput, match="math-verify does not start .*No module named.*: install requirements.txt"):
        graders.submit(problem("7"), r"\boxed{8}").result()


@linux
def test_verify_from_threads_that_end():
    """A worker must not die with the thread that called verify."""
    verdicts, pids = [], set()

    def call():
        verdicts.append(verifiers.verify(problem("7"), r"\boxed{14/2}"))
        pids.update(worker.process.pid for worker in verifiers.shared.math_workers)

    for _ in range(5):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    time.sleep(0.2)
    assert verdicts == [verifiers.Verdict(1, 1, "", "14/2")] * 5
    assert all(map(alive, pids))


def test_graders_beside_asyncio(monkeypatch):
    """Order, a bounded number of processes, and cancelled answers whose verdicts reach no one else."""

    monkeypatch.setattr(workers, "CPU_SECONDS", 1)

    async def grade():
        graders = verifiers.Graders(workers=2)
        try:
            n = [graders.grade(problem(str(i)), rf"\boxed{{{i}+0}}") for i in range(10)]
            n += [graders.grade(problem(str(i)), rf"\boxed{{{i}+1}}") for i in range(10)]
            assert [verdict.correct for verdict in await asyncio.gather(*n)] == [1] * 10 + [0] * 10
            assert len(graders.math_workers) <= 2
            running = [asyncio.ensure_future(graders.grade(problem("3"), TOWER)) for _ in range(2)]
            await asyncio.sleep(0.3)
            waiting = [asyncio.ensure_future(graders.grade(problem("7"), r"\boxed{7+0}")) for _ in range(3)]
            await asyncio.sleep(0.1)
            for task in running + waiting:
                task.cancel()
            assert all(isinstance(end, asyncio.CancelledError) for end in
                       await asyncio.gather(*running, *waiting, return_exceptions=True))
            n = [graders.grade(problem(str(i)), rf"\boxed{{{i}+{i % 2}}}") for i in range(6)]
            assert [verdict.correct for verdict in await asyncio.gather(*n)] == [1, 0] * 3
        finally:
            graders.close()

    asyncio.run(grade())


@linux
def test_close_leaves_no_process():
    graders = verifiers.Graders(workers=2)
    pid = right(graders)
    before, running = cpu_ticks(pid), [graders.submit(problem("3"), TOWER) for _ in range(5)]
    wait_until(lambda: cpu_ticks(pid) > before + 10 and len(graders.math_workers) == 2)
    graders.close()
    assert not alive(pid) and not any(worker.process for worker in graders.math_workers)
    # No verdict is made up for them, and none is a process' fault.
    assert all(future.cancelled() or isinstance(future.exception(), RuntimeError) for future in running)


OTHER = """
import sys, threading, time, verifiers
from benches.problem import Problem
p = Problem(id="p", bench="own", text="?", verifier="math", answer="7")
graders = verifiers.Graders(workers=2)
for future in [graders.submit(p, r"\\boxed{14/2}") for _ in range(2)]:
    assert future.result().correct
print(*(worker.process.pid for worker in graders.math_workers), flush=True)
"""


@linux
@pytest.mark.parametrize("end, status", [("", 0), ("1 / 0", 1), ("sys.exit(3)", 3),
                                         ("graders.submit(p, TOWER); time.sleep(60)", -signal.SIGKILL)])
def test_no_process_outlives_us(end, status):
    """However we end: the interpreter without a close, or kill -9 with one worker busy and one idle."""
    script = OTHER + f"TOWER = {TOWER!r}\n" + end
    us = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    pids = list(map(int, us.stdout.readline().split()))
    assert len(pids) == 2
    if status == -signal.SIGKILL:
        before = list(map(cpu_ticks, pids))
        wait_until(lambda: any(cpu_ticks(pid) > ticks + 30 for pid, ticks in zip(pids, before)))
        us.kill()
    us.stdout.close()
    assert us.wait(600) == status
    wait_until(lambda: not any(map(alive, pids)), seconds=4)  # before a time limit or the end of its input would end it


# ---- The command line -----------------------------------------------------------------------------------------------


def run(*arguments):
    command = [sys.executable, "verifiers.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


def refusal(monkeypatch, capsys, *arguments):
    """Standard error of a command line that must end with status 2 and print no verdict."""
    monkeypatch.setattr(sys, "argv", ["verifiers.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        exit_with_sentence(verifiers.main)
    said = capsys.readouterr()
    assert end.value.code == 2 and said.out == "" and "Traceback" not in said.err
    return said.err


def row(answer="7", response=r"\boxed{7}", **more):
    return {"problem": {"id": "p", "problem": "?", "verifier": "math", "answer": answer}, "response": response} | more


def test_command_line(tmp_path):
    file = tmp_path / "answers.jsonl"
    rows = [row(str(i), rf"\boxed{{{i}+{i % 2}}}", truncated=i == 3) for i in range(8)]
    file.write_text("".join(json.dumps(line) + "\n" for line in rows))
    done = run(file)
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"reward": 1 - i % 2, "correct": 1 - i % 2, "feedback": "", "signature": f"{i}+{i % 2}"} for i in range(8)]


@pytest.mark.parametrize("line, sentence", [
    ('{"problem": ', "line 2"),
    ("[]", "line 2"),
    ('"text"', "line 2"),
    (json.dumps({"response": "x"}), "line 2"),
    (json.dumps({"problem": row()["problem"]}), "line 2"),
    (json.dumps(row(response=7)), "line 2"),
    (json.dumps(row(truncated="no")), "line 2"),
    (json.dumps({"problem": "7", "response": "x"}), "line 2"),
    (json.dumps({"problem": {"id": "p", "problem": "?", "verifier": "math"}, "response": "x"}), "line 2"),
    (json.dumps({"problem": {"id": "p", "problem": "?", "verifier": "dice"}, "response": "x"}), "line 2"),
])
def test_bad_line(monkeypatch, capsys, tmp_path, line, sentence):
    file = tmp_path / "answers.jsonl"
    file.write_text(json.dumps(row()) + "\n" + line + "\n")
    said = refusal(monkeypatch, capsys, file)
    assert sentence in said and len(said.splitlines()) == 1


def test_bad_file(monkeypatch, capsys, tmp_path):
    for file in (tmp_path / "none.jsonl", tmp_path):
        said = refusal(monkeypatch, capsys, file)
        assert str(file) in said and len(said.splitlines()) == 1
    assert "FILE.jsonl" in refusal(monkeypatch, capsys)
    done = run(tmp_path / "none.jsonl")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


# ---- math-verify's bare verdict -------------------------------------------------------------------------------------


def test_the_bare_verdict_is_math_verifys():
    """It forgets how often an item of a list stands there, and takes r for R: what this project corrects."""
    for gold, answer in (("2,2,3", "2,3"), (r"\pi R^2", r"\pi r^2")):
        assert answers.math_equal(gold, answer, strict=True) and not answers.math_equal(gold, answer)
    assert answers.math_equal("0.5", r"\frac12", strict=True) and not answers.math_equal("7", "8", strict=True)


def test_the_bare_verdict_is_a_setting_of_the_run():
    with contextlib.closing(verifiers.Graders(1, strict=True)) as graders:
        assert graders.submit(problem("2,2,3"), r"\boxed{2,3}").result().reward == 1
    with contextlib.closing(verifiers.Graders(1)) as graders:
        assert graders.submit(problem("2,2,3"), r"\boxed{2,3}").result().reward == 0
