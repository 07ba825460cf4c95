"""The verifier of an answer: reward r, feedback f, correct s (Section 2.1, App. B.1, C.2, C.3).

    reward    in {0, 1}: what the policy may see; code: all public tests pass, otherwise: judged correct
    correct   in {0, 1}: what the pass rate counts; code: public and private tests pass, otherwise: s = r
    feedback  text that the policy may see: MATH and the judge give the verdict only, so theirs is empty
    signature what makes two wrong answers the same error (App. A); None is never a repeat

MATH is decided by math-verify on the content of the last \\boxed{}. It runs in processes of its own, because its time
limits (SIGALRM) need a main thread and because no answer, be it a tower of powers, may hold up or end the run. The
judge runs on the engine: explore.py and evaluate.py await it.

    python verifiers.py FILE.jsonl   # {"problem": {...}, "response": "...", "truncated": false} a line -> its verdict
"""

import argparse
import asyncio
import atexit
import ctypes
import json
import logging
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import data
import programs
import prompts
from data import BadInput


@dataclass(frozen=True)
class Verdict:
    reward: int  # r in {0, 1}
    correct: int  # s in {0, 1}
    feedback: str  # f
    signature: str | None  # App. A
    fault: str | None = None  # why the verifier itself failed; the answer then counts as wrong


# ---- MATH -----------------------------------------------------------------------------------------------------------


def last_boxed(text):
    """Content of the last \\boxed (or \\fbox) of `text`, stripped; None without one, or if it is empty or unbalanced.

    As MATH's own grader reads them, \\fbox counts as a box, and a box without braces (`$\\boxed 5$`) holds what stands
    between it and the end of its formula or line. The last box alone decides: an earlier one never stands in for it.
    """
    boxes = list(re.finditer(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*", text))
    if not boxes:
        return None
    start = boxes[-1].end()
    if text[start : start + 1] != "{":
        return re.split(r"\$|\\\)|\\\]|\n", text[start:])[0].strip(" \t.,;") or None
    depth = 0
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):  # \{ and \} are characters, not groups
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return text[start + 1 : match.start()].strip() or None
    return None


def squeeze(text):
    """`text` without white space."""
    return "".join(text.split())


def plain_latex(text):
    """`text` without what changes no value but is beyond math-verify 0.9.0: dollar signs (they would end the formula),
    punctuation and line ends behind it, degree signs other than ^\\circ, ties, spaces between groups of three digits,
    signs of Unicode that LaTeX has names for."""
    text = re.sub("[²³]+", lambda match: "^{" + match[0].translate({ord("²"): "2", ord("³"): "3"}) + "}", text)
    text = re.sub(r"√\s*(\d+(?:\.\d+)?)", r"\\sqrt{\1}", text)  # \sqrt alone takes one digit
    signs = {"√": r"\sqrt ", "–": "-", "—": "-", "∞": r"\infty ", r"\varnothing": r"\emptyset"}
    for sign, name in signs.items():
        text = text.replace(sign, name)
    text = re.sub(r"\\?\$", "", text)
    text = re.sub(r"\^?(?:°|\\degree(?![a-zA-Z]))", r"^\\circ", text)
    text = re.sub(r"(?<=\d)(?:\\[,:; ]|[ ~])(?=\d{3}(?!\d))", "", text)
    return re.sub(r"(?:[\s.,;]|\\\\|\\newline)+$", "", text.replace("~", " ")).strip()


def math_equal(gold, answer):
    """Does the LaTeX `answer` (content of a box) equal the reference `gold`? For the main thread of a process only.

    math-verify stops itself after 5 s of parsing or comparing. That is no fault: an answer that it cannot read or
    compare is simply wrong. Two of its habits are corrected: it drops the base of 52_8, and it rounds to 6 decimals
    even where the reference has more. Others stay: units are dropped, 35\\% equals 35 and 0.35, a list has no order.
    """
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    bases = [re.search(r"\d_\{?(\d+)\}?$", squeeze(text)) for text in (gold, answer)]
    if all(bases) and bases[0][1] != bases[1][1]:
        return False
    # The whole text is one formula: no search for boxes, numbers or phrases like "the answer is" within it.
    normal = NormalizationConfig(basic_latex=True, units=True, malformed_operators=True, nits=True, boxed="none")
    config = [LatexExtractionConfig(boxed_match_priority=-1, normalization_config=normal)]
    gold, answer = plain_latex(gold), plain_latex(answer)
    parsed = [parse(f"$${text}$$", config, extraction_mode="first_match") for text in (gold, answer)]
    decimals = max(map(len, re.findall(r"\.(\d+)", gold)), default=0)
    return verify(parsed[0], parsed[1], float_rounding=max(6, decimals))  # gold first: verify is not symmetric


def math_verdict(problem, response, ask):
    """Verdict of a MATH answer; `ask(gold, answer)` -> (equal, fault) is a worker's."""
    answer = last_boxed(response)
    if answer is None:
        return Verdict(0, 0, "", None)
    equal, fault = squeeze(answer) == squeeze(problem.answer), None
    if not equal and len(answer) <= LONGEST_ANSWER:
        equal, fault = ask(problem.answer, answer)
    return Verdict(int(equal), int(equal), "", squeeze(answer), fault)


# ---- The worker processes of MATH -----------------------------------------------------------------------------------

CPU_SECONDS = 12  # over math-verify's own limits together (parsing 5 s, comparing 5 s): where they work, they decide
WALL_SECONDS = 60  # for a worker that does not even use the CPU
START_SECONDS = 300  # importing from a slow disk, beside an engine that is loading
MEMORY_BYTES = 1 << 30  # address space of a worker; it needs about a tenth
LONGEST_ANSWER = 5_000  # characters; it fits a pipe, so no write to a worker waits. Longer answers are wrong unread


def math_worker():
    """The loop of a worker: JSON [gold, answer] a line in, 0 or 1 a line out, and first a line that says it is ready.

    The kernel ends it in whatever C code it is: after CPU_SECONDS in one comparison (SIGPROF), and, on Linux, when the
    thread that started it ends (PR_SET_PDEATHSIG), be it by kill -9. An idle one ends with its input on any system.
    """
    cpu_seconds = float(sys.argv[2])
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing that a library prints may pass for a verdict
    logging.disable()
    if sys.platform == "linux":
        import resource

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        math_equal("1", "2")
    except ImportError as error:
        print(error, file=replies)
        return
    print("ready", file=replies)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        equal = math_equal(*json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(int(equal), file=replies)


class MathWorker:
    """A worker process as one thread sees it. The thread must live as long as the process (PR_SET_PDEATHSIG).
    closing: the Event of its pool, which kills the process next: a call of `ask` that is running ends with an error."""

    def __init__(self, closing):
        self.process, self.closing = None, closing

    def ask(self, gold, answer):
        """-> (equal: bool, fault: str or None). A hung or dead process is replaced at the next call."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        try:
            self.process.stdin.write(json.dumps([gold, answer]).encode() + b"\n")
            self.process.stdin.flush()
            reply = self.reply(WALL_SECONDS)
        except BrokenPipeError:
            reply = b""
        if reply:
            return reply == b"1\n", None
        if reply is None:
            fault = f"math-verify gave no verdict within {WALL_SECONDS} s and was killed"
        elif self.process.wait() == -signal.SIGPROF:
            fault = f"math-verify used more than {CPU_SECONDS} s of CPU time and was killed"
        else:
            fault = f"the math-verify process died with status {self.process.returncode}"
        self.stop()
        self.check_open()
        return False, fault

    def start(self):
        self.stop()
        # A new interpreter, not a fork of the engine's process; a session of its own, so that Ctrl-C reaches only us.
        # Its sets have a fixed order, so that a verdict does not depend on the run.
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--math-worker", str(CPU_SECONDS)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env=os.environ | {"PYTHONHASHSEED": "0"}, start_new_session=True)
        ready = b"" if self.closing.is_set() else self.reply(START_SECONDS)
        if ready != b"ready\n":
            self.stop()
            self.check_open()
            raise BadInput(f"math-verify does not start ({(ready or b'its process died').decode().strip()}): "
                           "install requirements.txt (or requirements-cpu.txt) into this Python.")

    def reply(self, seconds):
        """One line, b"" if the process ended before one, None if none came within `seconds`."""
        poll, line, end = select.poll(), b"", time.monotonic() + seconds
        poll.register(self.process.stdout, select.POLLIN)
        while not line.endswith(b"\n"):
            if not poll.poll(max(0, end - time.monotonic()) * 1000):
                return None
            part = os.read(self.process.stdout.fileno(), 65536)
            if not part:
                return b""
            line += part
        return line

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.communicate()  # waits, and closes its pipes
            self.process = None

    def check_open(self):
        if self.closing.is_set():
            raise RuntimeError("The graders were closed while they graded.")


# ---- Code -----------------------------------------------------------------------------------------------------------


def code_verdict(problem, response, truncated):
    """Verdict of a program (App. C.2); a sandbox that fails is a fault."""
    try:
        return Verdict(*programs.verdict(problem, response, truncated))
    except RuntimeError as error:
        return Verdict(0, 0, "", None, str(error))


# ---- The judge ------------------------------------------------------------------------------------------------------

JUDGE_TOKENS = 512                                  # App. C.3: the judge decodes greedily, at most 512 new tokens
JUDGE_WINDOW, JUDGE_HEAD, JUDGE_TAIL = 12_000, 3_000, 9_000  # characters of a response that it reads
JUDGE_OMISSION = "\n\n[... middle of the response omitted ...]\n\n"


def judge_messages(problem, response):
    """-> messages for the judge; it reads what follows the last </think> unless that is empty; a long middle is cut."""
    after = response.rpartition("</think>")[2]
    text = (after if after.strip() else response).replace("<|", "< |")  # no <|im_end|> that ends the prompt's turn
    if len(text) > JUDGE_WINDOW:
        text = text[:JUDGE_HEAD] + JUDGE_OMISSION + text[-JUDGE_TAIL:]
    return prompts.judge(problem, text)


def judge_verdict(text):
    """-> 1 if the last whole word yes or no of the judge's text, in any case, is yes; 0 otherwise."""
    words = re.findall(r"\b(yes|no)\b", text, re.IGNORECASE)
    return int(bool(words) and words[-1].lower() == "yes")


async def grade(problem, response, truncated, engine, graders):
    """-> (Verdict, the judge's Sample or None). The judge is the engine's model without adapter, ahead of its queue."""
    from engine import ContextTooLong  # here, because the processes of MATH load this file, and need no torch

    if problem.verifier != "judge":
        return await graders.grade(problem, response, truncated), None
    try:
        said = await engine.sample(engine.encode(judge_messages(problem, response)), seed=0, max_tokens=JUDGE_TOKENS,
                                   temperature=0.0, top_p=1.0, priority=-1)
    except ContextTooLong as error:  # no other answer to the problem suffers from it
        return Verdict(0, 0, "", None, f"The judge cannot read the answer: {error}"), None
    reward = judge_verdict(said.text)
    return Verdict(reward, reward, "", None), said


# ---- All of them ----------------------------------------------------------------------------------------------------


NEEDS_ENGINE = "a judge needs an engine: use explore.py or evaluate.py."


class Graders:
    """A bounded pool beside the engine: threads that wait, each for its own worker process or sandbox."""

    def __init__(self, workers=None):
        """`workers`: answers graded at a time; default: the cores this process may use."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self.threads = ThreadPoolExecutor(workers or cores, "grader")
        self.own = threading.local()
        self.math_workers = []
        self.closing = threading.Event()
        atexit.register(self.close)

    def submit(self, problem, response, truncated=False):
        """-> concurrent.futures.Future of the Verdict."""
        return self.threads.submit(self.run, problem, response, truncated)

    async def grade(self, problem, response, truncated=False):
        """-> Verdict. Cancelled while it waits, it is never graded; cancelled while graded, its verdict is dropped."""
        return await asyncio.wrap_future(self.submit(problem, response, truncated))

    def run(self, problem, response, truncated):
        if problem.verifier == "math":
            return math_verdict(problem, response, self.ask_math)
        if problem.verifier == "code":
            return code_verdict(problem, response, truncated)
        raise BadInput(f"{problem.id}: {NEEDS_ENGINE}")

    def ask_math(self, gold, answer):
        if not hasattr(self.own, "math"):
            self.own.math = MathWorker(self.closing)
            self.math_workers.append(self.own.math)
        return self.own.math.ask(gold, answer)

    def close(self):
        """Drops what waits, ends the math that is being graded, waits for the code; leaves no process."""
        self.closing.set()  # before the processes: one that starts meanwhile sees it
        self.threads.shutdown(wait=False, cancel_futures=True)
        for process in [worker.process for worker in self.math_workers]:
            if process:
                process.kill()
        self.threads.shutdown(wait=True)
        for worker in self.math_workers:
            worker.stop()
        atexit.unregister(self.close)


shared = None  # the pool behind `verify`
shared_lock = threading.Lock()


def verify(problem, response, truncated=False):
    """-> Verdict of one answer, from any thread. BadInput for a judge's problem."""
    global shared
    with shared_lock:
        shared = shared or Graders()
    return shared.submit(problem, response, truncated).result()


def main():
    parser = argparse.ArgumentParser(description="Grade answers to math and code problems, a line each.")
    parser.add_argument("file", metavar="FILE.jsonl",
                        help='lines {"problem": {...}, "response": "...", "truncated": ...}')
    args = parser.parse_args()
    answers = []
    for where, row in list(data.rows(args.file)):  # nothing is graded of a file with a damaged line
        row = {"truncated": False} | row
        kinds = {"problem": dict, "response": str, "truncated": bool}
        if not all(isinstance(row.get(key), kind) for key, kind in kinds.items()):
            raise BadInput(f'{where}: write {{"problem": {{...}}, "response": "...", "truncated": false}}.')
        problem = data.problem_from_row(row["problem"], Path(args.file).stem, where)
        if problem.verifier == "judge":
            raise BadInput(f"{where}: {NEEDS_ENGINE}")
        answers.append((problem, row["response"], row["truncated"]))
    graders = Graders()
    try:
        for future in [graders.submit(*answer) for answer in answers]:
            verdict = vars(future.result())
            print(json.dumps({key: verdict[key] for key in verdict if key != "fault" or verdict["fault"]}), flush=True)
    finally:
        graders.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--math-worker"]:
        math_worker()
    else:
        data.exit_with_sentence(main)
