"""Runs untrusted programs: the model's own, with a reward at stake.

    with answer(program) as tested:
        tested.run_scripts(inputs, seconds)  iterator of Outcomes:          `python Solution.py < input`, for each
        tested.run_modules(runs, seconds)    iterator of lists of Outcomes: loads the program, then calls or evaluates

How. A small helper (jail.py, under a minimal interpreter, no fork of the engine's process) forks a supervisor for each
answer, and that one a fresh process for each test. It is process 1 of a namespace: when it ends, is killed, or we die,
however we die, the kernel ends all that it has started. What counts is seen from outside (wait status, files that the
supervisor holds). Nothing that the program writes is a verdict: expected outputs never enter the sandbox, its results
are read as data (JSON, never pickle), and the caller compares them.

Covered, where the kernel allows user namespaces (Linux 5.12 or newer, x86-64 or ARM):
- files: the program sees Python, its packages, the system's directories of programs and libraries, and a directory of
  64 MiB that holds itself and its input, is made anew for each test and is all that it can write to; no home, no
  project, no /proc
- network: none. Processes: it sees and signals its own only. No rights, no namespaces of its own, few kernel interfaces
- memory: 1 GiB a process (`memory`), twice that for all its processes; if the machine runs out, the test goes first
- 64 processes and threads, 256 open files, no core dumps; 32 MiB of output, 4 MiB of results
- time: `seconds` of CPU, for all its processes. On a loaded machine the time in which it stands ready but others have
  the CPU does not count. It may sleep: twice `seconds` + 1 s in all; and after ten times `seconds` + 10 s it ends
Without user namespaces (many containers): Landlock keeps it to the same files, seccomp from the network and from
signals and limits of others, root becomes an unprivileged user, the supervisor hunts down what is left. `start` warns
once of what is missing.
Not covered: faults of the kernel, timing and cache side channels, CPU and memory bandwidth taken from other tests, what
the directories of programs and libraries hold. Without namespaces also: the size of the directory, for some kinds of
root processes that fork faster than they are killed, what /dev and the number of a process tell.
What a program may forge is its own answer. It never meets what is expected, but for asserts (asserts.run_asserts)
that hold other statements, that call several built-in names and none of the program's, or that give the program a
function or an object of a library that they make themselves. A name that an assert leaves to the program (isclose,
np), and a method of an object that the program returned, are the program's to define.
Unlike elsewhere: signals that a program sends itself do nothing unless it handles them (it is process 1; without
namespaces they are refused); without namespaces there are no POSIX semaphores, and no second Python where only root
may enter its folder. Only Linux.
"""

import atexit
import json
import math
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field

from common.errors import BadInput
from sandbox import linux
from sandbox.jail import MEMORY_BYTES
from sandbox.program import decode


@dataclass(frozen=True)
class Outcome:
    """What a run, or one step of it, came to."""
    kind: str  # "ok" | "error" (an exception, or killed) | "timeout"
    stdout: str = ""
    value: object = None  # of a step; plain built-in types, see `decode`
    error: str = ""  # "ZeroDivisionError: division by zero"
    frames: list = field(default_factory=list)  # [line, source, name]: innermost first, 3 at most, all the program's
    seconds: float = 0.0  # of CPU, for a script; of wall time, as the program's process says, for a step


AHEAD_BYTES = 50_000  # a request of no more waits in the socket, and neither side waits for the other
ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
HELPER = f"import sys; sys.path.insert(0, {ROOT!r}); from sandbox import jail; jail.helper()"
CANARY = "import math, sys\nprint(math.isqrt(int(input())), len(sys.stdin.read()))"
control = process = None
lock = threading.RLock()
slots = threading.BoundedSemaphore(len(os.sched_getaffinity(0)))  # answers tested at a time, one test each


def start():
    """Start the helper unless it runs. -> our end of its socket; BadInput if a program known to be good fails."""
    with lock:
        if process and process.poll() is None:
            return control
        first = process is None
        close()
        without = try_helper(True)
        if without:
            broken = try_helper(False)
            if broken:
                raise BadInput(f"Programs cannot be run safely on this machine: {without}; {broken}.")
        if first:
            warn(without)
        return control


def try_helper(namespaces):
    """Start a helper and let it run a program known to be good. -> None, or why there is no such helper."""
    try:
        if namespaces and not linux.ARCHITECTURE:
            return f"unknown processor {os.uname().machine}"
        reply = spawn(namespaces)
        if reply == "ready":
            with answer(CANARY, helper=control) as canary:
                outcome, = canary.run_scripts(["144\nabc"], 20)
            if outcome.stdout == "12 3\n":
                return None
            reply = f"a program known to be good came to {outcome}"
    except (OSError, RuntimeError) as error:
        reply = str(error)
    close()
    return reply


def warn(without_namespaces):
    """Say once what is missing here. without_namespaces: why there are none, or None."""
    missing = []
    if without_namespaces:
        missing.append(f"namespaces ({without_namespaces})")
        if linux.landlock_version() < 1:
            missing.append("Landlock")
    if not linux.ARCHITECTURE:
        missing.append("seccomp")
    if missing:
        print(f"warning: the sandbox for programs is weaker here, without {', '.join(missing)}", file=sys.stderr)


def spawn(namespaces):
    """Start a helper with or without namespaces. -> "ready", or why not."""
    global control, process
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    packages = list({os.path.realpath(sysconfig.get_path(name)): None for name in ("purelib", "platlib")})
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    sources = ["/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/nix/store",
               sys.base_prefix, sys.base_exec_prefix, *packages]
    sources = list({os.path.realpath(path): None for path in sources if os.path.exists(path)})
    config = json.dumps({"namespaces": namespaces, "packages": packages, "sources": sources,
                         "temporary": tempfile.gettempdir()})
    # A second arena would take 64 MiB of a thread's address space, or not, by luck of where it lies.
    environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp", "PYTHONHASHSEED": "0",
                   "MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [python, "-P", "-s", "-S", "-B", "-X", "utf8", "-c", HELPER, str(theirs.fileno()), str(os.getpid()), config],
        pass_fds=[theirs.fileno()], cwd="/", start_new_session=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, env=environment)
    theirs.close()
    return control.recv(1000).decode() or "its helper process died"


def close():
    """End the helper and all that it runs."""
    global control, process
    with lock:
        if process:
            control.close()
            process.kill()
            process.wait()
            control = process = None


atexit.register(close)


# ---- Outcomes -------------------------------------------------------------------------------------------------------


def outcome_of_end(header):
    """How a program came to its end, for the caller that has no record of an exception."""
    if header["why"] == "timeout":
        return Outcome("timeout")
    if header["why"]:
        errors = {"memory": "MemoryError", "processes": "BlockingIOError: too many processes"}
        return Outcome("error", error=errors[header["why"]])
    if header["status"] < 0:
        names = {number.value: number.name for number in signal.Signals}  # not of all real-time signals
        number = -header["status"]
        return Outcome("error", error=f"ProcessError: killed by signal {names.get(number, number)}")
    return Outcome("error", error=f"ProcessError: exit status {header['status']}")


def outcome_of_script(header, output, records):
    outcomes = read_records(header, records)
    if header["why"] or header["status"]:
        outcomes = [outcome_of_end(header)]
    last = outcomes[-1] if outcomes else Outcome("ok")
    return Outcome(last.kind, output.decode("utf-8", "replace"), None, last.error, last.frames, header["seconds"])


def read_records(header, records):
    """-> Outcomes of the steps that were recorded. What the program itself wrote there is data, and may be broken."""
    nonce = header["nonce"].encode()
    lines = [line for line in records.split(b"\n") if line.startswith(nonce)]
    return [read_record(line[len(nonce):]) for line in lines]


def read_record(line):
    try:
        record = json.loads(line)
        if "error" in record:
            frames = [[int(number), str(source), str(name)] for number, source, name in record["frames"][:3]]
            return Outcome("error", error=str(record["error"]), frames=frames)
        seconds = float(record.get("seconds", 0))
        return Outcome("ok", value=decode(record["value"]), seconds=seconds)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError):
        return Outcome("error", error="ValueError: the result cannot be read")


# ---- An answer ------------------------------------------------------------------------------------------------------


@contextmanager
def answer(program, memory=MEMORY_BYTES, imports=(), star_imports=False, digests=False, helper=None):
    """`with answer(program) as tested`: an Answer, which holds a slot.

    For modules: imports: lines of code to run first; star_imports: STAR_IMPORTS before them; digests: of long lists
    only a digest. helper: the one to ask, which has just started and needs no slot.
    """
    request = {"Solution.py": program, "memory": memory, "imports": list(imports), "star_imports": star_imports,
               "digests": digests}
    with nullcontext() if helper else slots:
        tested = Answer(request, helper)
        try:
            yield tested
        finally:
            tested.close()


class Answer:
    """A program under test, in a process that forks for each test (jail.Supervisor); made by `answer`."""

    def __init__(self, request, helper=None):
        self.request, self.helper = request, helper
        self.connection = self.replies = None
        self.waiting = []  # lines of tests that were sent and have no reply: one, or two with one sent ahead

    def run_scripts(self, inputs, seconds):
        """Run the program as `__main__` on each text of `inputs`. -> iterator of Outcomes; SystemExit is a normal end.

        A test starts when its Outcome is asked for, or one before that; what is left at the end of the `with` is
        dropped.
        """
        tests = [{".stdin": text, "seconds": [seconds], "total": seconds, "steps": None} for text in inputs]
        for header, output, records in self.run_all(tests):
            yield outcome_of_script(header, output, records)

    def run_modules(self, runs, seconds, total=math.inf):
        """For each of `runs`, in a fresh process: load the program as a module that is not `__main__`, then take the
        steps of the run up to the first that fails.

        A step: {"call": function name, "args": [...]} (a method of a fresh Solution(), where there is one, or a
        function), {"exec": statements}, {"eval": expression, "names": {name: value} to set before}, or {"judge": an
        assert, ...} as `proxy.judge` reads it. Values as `encode` gives them.
        seconds: for each step and for the loading, or a list with the loading first; total: CPU seconds for a run.
        -> iterator of lists of Outcomes: of the loading and of the steps, ending with the first that is not "ok".
        """
        tests = []
        for steps in runs:
            limits = list(seconds) if isinstance(seconds, (list, tuple)) else [seconds] * (1 + len(steps))
            tests.append({".stdin": "", "seconds": limits, "total": min(total, sum(limits)), "steps": steps})
        for test, (header, _, records) in zip(tests, self.run_all(tests)):
            outcomes = read_records(header, records)[: len(test["seconds"])]
            if len(outcomes) < len(test["seconds"]) and all(outcome.kind == "ok" for outcome in outcomes):
                outcomes.append(outcome_of_end(header))
            yield outcomes

    def run_all(self, tests):
        """-> iterator of what `run` gives for each; the next is sent ahead, so that the helper need not wait for us."""
        for test, following in zip(tests, [*tests[1:], None]):
            yield self.run(test, following)

    def run(self, test, following=None):
        """-> (header, output, records) of one test; RuntimeError if the helper fails twice."""
        line = json_line(test)
        ahead = json_line(following) if following else b""
        for _ in range(2):
            helper = self.helper or start()  # a new one, if the last has died
            try:
                self.send(helper, line, ahead)
                return self.receive()
            except (OSError, ValueError) as error:
                self.close()
                failure = error
        raise RuntimeError(f"the sandbox gave no answer ({failure})") from failure

    def send(self, helper, line, ahead):
        if self.waiting and self.waiting[0] != line:  # others were asked for and dropped
            self.close()
        if not self.connection:
            self.connect(helper)
        message = b""
        if not self.waiting:
            message = line
            self.waiting.append(line)
        if ahead and len(ahead) <= AHEAD_BYTES:
            message += ahead
            self.waiting.append(ahead)
        with suppress(ConnectionError):  # the reply says why
            self.connection.sendall(message)

    def connect(self, helper):
        self.connection, theirs = socket.socketpair()
        self.replies = self.connection.makefile("rb")
        with theirs:
            socket.send_fds(helper, [b"t"], [theirs.fileno()])
        with suppress(ConnectionError):
            self.connection.sendall(json_line(self.request))

    def receive(self):
        header = json.loads(self.replies.readline() or b"null")
        if header is None:
            raise ConnectionError("its process died")
        if "fault" in header:
            raise ConnectionError(header["fault"])
        output, records = (self.replies.read(size) for size in header["sizes"])
        if [len(output), len(records)] != header["sizes"]:
            raise ConnectionError("its process died in the middle of a reply")
        self.waiting.pop(0)
        return header, output, records

    def close(self):
        """The process at the other end sees it, and ends what it runs."""
        if self.connection:
            self.replies.close()
            self.connection.close()
        self.connection = self.replies = None
        self.waiting = []


def json_line(data):
    return json.dumps(data).encode() + b"\n"
