"""The pool of graders beside the engine: threads that wait, and math-verify in processes of its own.

In processes, because its time limits (SIGALRM) need a main thread and because no answer, be it a tower of powers, may
hold up or end the run.
"""
import asyncio
import atexit
import ctypes
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from answers import math_equal
from common.errors import BadInput
CPU_SECONDS = 12  # over math-verify's own limits together (parsing 5 s, comparing 5 s): where they work, they decide
WALL_SECONDS = 60  # for a worker that does not even use the CPU
START_SECONDS = 300  # importing from a slow disk, beside an engine that is loading
MEMORY_BYTES = 1 << 30  # address space of a worker; it needs about a tenth
LONGEST_ANSWER = 5_000  # characters; it fits a pipe, so no write to a worker waits. Longer answers are wrong unread
ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
WORKER = f"import sys; sys.path.insert(0, {ROOT!r}); from sandbox import workers; workers.math_worker()"


def math_worker():
    """The loop of a worker: JSON [gold, answer, strict] a line in, 0 or 1 a line out, and first a line that says it is
    ready.

    The kernel ends it in whatever C code it is: after CPU_SECONDS in one comparison (SIGPROF), and, on Linux, when the
    thread that started it ends (PR_SET_PDEATHSIG), be it by kill -9. An idle one ends with its input on any system.
    """
    cpu_seconds = float(sys.argv[1])
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

    def ask(self, gold, answer, strict=False):
        """See answers.math_equal. -> (equal: bool, fault: str or None). A hung or dead process is replaced at the next
        call."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        try:
            self.process.stdin.write(json.dumps([gold, answer, strict]).encode() + b"\n")
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
            [sys.executable, "-P", "-c", WORKER, str(CPU_SECONDS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONHASHSEED": "0"}, start_new_session=True)
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


class Workers:
    """A bounded pool beside the engine: threads, each with its own worker process for math.

    Who derives from it says what a thread does with (problem, response, truncated): `run` gives the whole verdict,
    `run_public` what the policy may see, and `run_private` (problem, response) what `run_public` leaves open.
    """

    def __init__(self, workers=None, strict=False):
        """`workers`: answers graded at a time; default: the cores this process may use. strict: see math_equal."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self.workers, self.strict = workers or cores, strict
        self.threads = ThreadPoolExecutor(self.workers, "grader")
        # The private tests that nobody waits for have half of the cores at most.
        self.private_threads = ThreadPoolExecutor(max(1, self.workers // 2), "private grader")
        self.own = threading.local()
        self.math_workers = []
        self.closing = threading.Event()
        atexit.register(self.close)

    def submit(self, problem, response, truncated=False):
        """-> concurrent.futures.Future of the Verdict."""
        return self.threads.submit(self.run, problem, response, truncated)

    async def grade(self, problem, response, truncated=False):
        """-> Verdict. Cancelled while it waits, it is never graded; while it is graded, its verdict is dropped."""
        return await asyncio.wrap_future(self.submit(problem, response, truncated))

    async def grade_public(self, problem, response, truncated=False):
        """-> Verdict; of a program without its private tests."""
        return await asyncio.wrap_future(self.threads.submit(self.run_public, problem, response, truncated))

    async def grade_private(self, problem, response):
        """-> (correct, fault) of an answer whose public verdict leaves `correct` open."""
        return await asyncio.wrap_future(self.private_threads.submit(self.run_private, problem, response))

    def ask_math(self, gold, answer):
        if not hasattr(self.own, "math"):
            self.own.math = MathWorker(self.closing)
            self.math_workers.append(self.own.math)
        return self.own.math.ask(gold, answer, self.strict)

    def close(self):
        """Drops what waits, ends the math that is being graded, waits for the code; leaves no process."""
        self.closing.set()  # before the processes: one that starts meanwhile sees it
        for threads in (self.private_threads, self.threads):
            threads.shutdown(wait=False, cancel_futures=True)
        for process in [worker.process for worker in self.math_workers]:
            if process:
                process.kill()
        for threads in (self.threads, self.private_threads):
            threads.shutdown(wait=True)
        for worker in self.math_workers:
            worker.stop()
        atexit.unregister(self.close)
