"""Attacks on the sandbox, in bounded forms, with namespaces and without; its limits, its clocks, its end."""
import contextlib
import math
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest

from common.errors import BadInput
from sandbox import jail, linux, run as sandbox
from sandbox.program import RECORD_BYTES, decode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
spawn = sandbox.spawn
LONG = f"61.{os.getpid()}"  # seconds to sleep: another run of these tests beside this one has another number


@pytest.fixture(scope="module", params=["namespaces", "plain"])
def kind(request, tmp_path_factory):
    """The sandbox with namespaces, and as it is where they are refused; in a temporary folder that no other run uses,
    and that is empty at the end."""
    sandbox.close()
    tmp_path_factory.getbasetemp()  # that is made elsewhere
    tempfile.tempdir = tempfile.mkdtemp()
    os.chmod(tempfile.tempdir, 0o711)
    if request.param == "plain":
        sandbox.spawn = lambda namespaces: "refused by the test" if namespaces else spawn(False)
    elif spawn(True) != "ready":
        tempfile.tempdir = None
        pytest.skip("no user namespaces here")
    yield request.param
    sandbox.close()
    sandbox.spawn = spawn
    os.rmdir(tempfile.tempdir)
    tempfile.tempdir = None


def run(program, given="", seconds=5, **kwargs):
    outcome, = run_scripts(textwrap.dedent(program), [given], seconds, **kwargs)
    return outcome


def run_scripts(program, inputs, seconds, **kwargs):
    with sandbox.answer(program, **kwargs) as answer:
        return list(answer.run_scripts(inputs, seconds))


def run_modules(program, runs, seconds, total=math.inf, **kwargs):
    with sandbox.answer(program, **kwargs) as answer:
        return list(answer.run_modules(runs, seconds, total))


def ask(request, test, helper=None):
    """The reply to one test, be they as they may."""
    with contextlib.closing(sandbox.Answer(request, helper)) as answer:
        return answer.run(test)


def value(expression, program="", **kwargs):
    (*_, outcome), = run_modules(program, [[{"eval": expression, "names": {}}]], 5, **kwargs)
    assert outcome.kind == "ok", outcome
    return outcome.value


def processes(*words):
    """The command lines of this machine's processes that hold all of `words`."""
    lines = [linux.read_file(f"/proc/{name}/cmdline") for name in os.listdir("/proc") if name.isdigit()]
    return [line for line in lines if all(word in line for word in words)]


# ---- What a program must not reach -----------------------------------------------------------------------------------


def test_files(kind, tmp_path):
    tmp_path.chmod(0o777)
    for folder in list(tmp_path.parents)[:-2]:
        folder.chmod(folder.stat().st_mode | 0o711)
    keep = tmp_path / "keep.txt"
    keep.write_text("keep me")
    keep.chmod(0o666)
    outcome = run(f"""
        import os, shutil
        def attempt(action):
            try:
                action()
                print("reached")
            except OSError:
                pass
        ours = {[str(keep), __file__, sandbox.__file__]!r}
        for path in ours + [{str(Path.home() / 'x')!r}, "/etc/passwd", "/proc/1/environ", "/proc/1/mem"]:
            attempt(lambda: open(path).read())
        for path in ours + [{str(tmp_path / 'new')!r}, "/new", "/usr/new", "/dev/new", "/var/tmp/new", os.__file__]:
            attempt(lambda: open(path, "w"))
        for action in os.remove, os.chmod, os.truncate:
            attempt(lambda: action({str(keep)!r}, *[0] * (action is not os.remove)))
        shutil.rmtree({str(tmp_path)!r}, ignore_errors=True)
        open("mine", "w").write("x")
        print(sorted(os.listdir(".")))
        """)
    assert outcome.stdout == "['.stdin', 'Solution.py', 'mine']\n", outcome
    assert os.listdir(tempfile.gettempdir()) == []
    assert keep.read_text() == "keep me" and os.listdir(tmp_path) == ["keep.txt"]
    assert run("import os\nos.makedirs('a/b')\nopen('a/b/c', 'w')\nos.chmod('a/b', 0)\nos.chmod('a', 0)").kind == "ok"
    assert run("import os\nfor _ in range(2000): os.mkdir('a'); os.chdir('a')").kind == "ok"
    assert os.listdir(tempfile.gettempdir()) == []
    fresh = run("import os; print(sorted(os.listdir('.')))")
    assert fresh.stdout == "['.stdin', 'Solution.py']\n"


def test_packages_anywhere(kind, tmp_path, monkeypatch):
    """Behind a link, and in /tmp, which is the program's own folder inside."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "mine.py").write_text("x = 5")
    (tmp_path / "link").symlink_to("packages")
    monkeypatch.setattr(sandbox.sysconfig, "get_path", lambda name: str(tmp_path / "link"))
    sandbox.close()
    assert run("import mine\nprint(mine.x)").stdout == "5\n"
    sandbox.close()


def test_nothing_tells_a_test_of_those_before_it(kind):
    program = textwrap.dedent("""
        import fcntl, os
        print(sorted(os.listdir(".")), os.path.exists("/out") and os.listdir("/out"), [
            (fcntl.fcntl(fd, fcntl.F_GETFL), os.fstat(fd).st_mode, os.listxattr(fd), os.lseek(fd, 0, 1))
            for fd in (0, 1, 3)])
        for action in (lambda: os.chmod("/out", 0o777), lambda: open("/out/x", "w"), lambda: open("x", "w"),
                       *(lambda fd=fd: os.fchmod(fd, 0o641) for fd in (0, 1, 3)),
                       *(lambda fd=fd: os.setxattr(fd, "user.a", b"1") for fd in (0, 1, 3)),
                       *(lambda fd=fd: fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)
                         for fd in (0, 1, 3))):
            try:
                action()
            except OSError:
                pass
        """)
    first, second = run_scripts(program, ["", ""], 5)
    assert first.kind == "ok" and first.stdout == second.stdout


def test_network(kind):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        port = server.getsockname()[1]
        outcome = run(f"""
            import socket
            for family, type in (2, 1), (2, 2), (10, 1), (2, 3), (17, 3), (16, 3):
                try:
                    s = socket.socket(family, type)
                    s.settimeout(1)
                    s.connect(("::1" if family == 10 else "127.0.0.1", {port}))
                    s.send(b"hi")
                    print("sent", family, type)
                except (OSError, TypeError):
                    pass
            """)
        with pytest.raises(TimeoutError):
            server.accept()
    assert outcome.kind == "ok" and "sent" not in outcome.stdout.replace("sent 16", "")


def test_other_processes(kind):
    victim = subprocess.Popen(["sleep", "60"])
    sandbox.start()
    helper = sandbox.process.pid
    try:
        outcome = run(f"""
            import ctypes, os, signal
            libc = ctypes.CDLL(None, use_errno=True)
            others = {{{victim.pid}, {os.getpid()}, {helper}, os.getppid() or {victim.pid}}} - {{os.getpid()}}
            for pid in others:
                for attempt in (lambda: os.kill(pid, 9), lambda: os.kill(pid, 0),
                                lambda: 1 / 0 if libc.ptrace(16, pid, 0, 0) else None):
                    try:
                        attempt()
                        print("reached", pid)
                    except (OSError, ZeroDivisionError):
                        pass
            """)
        assert outcome.kind == "ok" and outcome.stdout == ""
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_a_name_that_is_no_text(kind):
    """Of a process, as /proc shows it."""
    outcome = run("""
        import ctypes, os, time
        ctypes.CDLL(None).prctl(15, b") \\xff (\\n", 0, 0, 0)
        if os.fork():
            os.wait()
        time.sleep(0.2)
        print("ok")
        """)
    assert outcome.kind == "ok" and outcome.stdout == "ok\nok\n", outcome


def test_limits_of_others(kind):
    """With namespaces it sees its own children only, and may change them."""
    outcome = run("""
        import fcntl, os, resource, socket, struct, time
        pair = socket.socketpair()
        child = os.fork()
        if child == 0:
            time.sleep(60)
        resource.prlimit(0, resource.RLIMIT_NOFILE, (99, 99))
        os.sched_setaffinity(0, os.sched_getaffinity(0))
        for action in (lambda: resource.prlimit(child, resource.RLIMIT_CPU, (1, 1)),
                       lambda: os.sched_setaffinity(child, os.sched_getaffinity(0)),
                       lambda: os.setpriority(os.PRIO_USER, 0, 19), lambda: fcntl.fcntl(0, fcntl.F_SETOWN, child),
                       lambda: fcntl.fcntl(0, 15, struct.pack("ii", 1, child)),  # F_SETOWN_EX
                       *(lambda kind=kind: fcntl.ioctl(pair[0], kind, struct.pack("i", child))
                         for kind in (0x8901, 0x8902)), lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)):
            try:
                action()
                print("reached")
            except PermissionError:
                pass
        """)
    assert outcome.kind == "ok" and outcome.stdout == "reached\n" * (8 if kind == "namespaces" else 0)


def test_nothing_outlives_a_test(kind):
    start = time.monotonic()
    outcome = run(f"""
        import os, time
        print("done", flush=True)
        for _ in range(3):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.execvp("sleep", ["sleep", "{LONG}"])
                os._exit(0)
        time.sleep(0.3)
        os._exit(0)
        """)
    assert outcome.kind == "ok" and outcome.stdout == "done\n" and time.monotonic() - start < 50
    assert processes("sleep", LONG) == []


def test_signals_to_its_group_reach_only_itself(kind):
    run("print(1)")
    helper = sandbox.process.pid
    run("import os\nos.kill(0, 9)")
    assert run("print(2)").stdout == "2\n" and sandbox.process.pid == helper


def test_no_rights(kind):
    assert run("""
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        print([libc.unshare(0x10000000), libc.unshare(0x20000), libc.mount(b"none", b"/tmp", b"tmpfs", 0, None),
               libc.setuid(0), libc.chroot(b"."), libc.ptrace(0, 0, 0, 0), libc.syscall(319, b"m", 0),
               libc.prctl(23, 21, 0, 0, 0)])
        """).stdout in ("[-1, -1, -1, -1, -1, -1, -1, 0]\n", "[-1, -1, -1, -1, -1, -1, -1, 1]\n")
    assert run("import os; print(os.getuid() != 0)").stdout == "True\n" or os.getuid() != 0


def test_results_cannot_be_forged(kind):
    forge = """
        import json, os, sys
        for fd in range(3, 64):
            for text in ('{"passed": true}', 'True', '1', 'ok', '{"value": 3}', '{"value": {"set": [[]]}}',
                         '{"error": 3}', '[' * 9999):
                try:
                    os.write(fd, text.encode() + b"\\n")
                except OSError:
                    pass
        def nonces():
            frame = sys._getframe()
            while frame:
                yield from (v for v in frame.f_locals.values() if isinstance(v, str) and len(v) == 16)
                frame = frame.f_back
        for nonce in nonces():  # what it may forge is its own answer; broken data is no answer
            os.write(3, (nonce + BODY + "\\n").encode())
        os._exit(0)
        """
    assert run(forge.replace("BODY", "'x'")).stdout == ""
    collide = ",".join('{"int": "%x"}' % (i * ((1 << 61) - 1)) for i in range(5000))
    for body in ("x", "[" * 99999, '{"value": {"set": [[]]}}', '{"value": {"int": 3, "a": 4}}', "7",
                 '{"value": {"Decimal": ["x"]}}', '{"value": {"set": [' + collide + "]}}"):
        program = textwrap.dedent(forge).replace("BODY", repr(body))
        outcomes, = run_modules(program, [[{"eval": "3", "names": {}}]], 5)
        assert outcomes[-1].kind == "error", (body, outcomes)


# ---- Limits ---------------------------------------------------------------------------------------------------------


def test_memory_processes_output_disk_files(kind):
    assert "MemoryError" in run("x = [b'x' * 10**7 for _ in range(40)]", memory=200 << 20).error
    assert run("x = bytearray(150 << 20)\nprint(len(x))", memory=300 << 20).kind == "ok"
    bomb = run("import os, time\nfor _ in range(300):\n    if os.fork() == 0:\n        time.sleep(20)\n"
               "        os._exit(0)")
    assert "BlockingIOError" in bomb.error
    both = run("import os\nfor _ in range(7):\n    if os.fork() == 0: break\nx = bytearray(90 << 20)\n"
               "import time; time.sleep(3)", memory=128 << 20)
    assert both.error == "MemoryError"
    shared = run("import mmap, os, time\nfor _ in range(5):\n    if os.fork() == 0: break\n"
                 "m = mmap.mmap(-1, 90 << 20)\nfor i in range(0, 90 << 20, 4096): m[i] = 1\ntime.sleep(3)",
                 memory=128 << 20)
    assert shared.error == "MemoryError"
    of_a_thread = run("import os, threading, time\ndef f():\n    for _ in range(7):\n        if os.fork() == 0: break\n"
                      "    x = bytearray(90 << 20)\n    time.sleep(3)\nthreading.Thread(target=f).start()",
                      memory=128 << 20)
    assert of_a_thread.error == "MemoryError"
    in_a_thread = run("import threading\nthreading.Thread(target=lambda: print(len(bytearray(230 << 20)))).start()",
                      memory=300 << 20)
    assert in_a_thread.stdout == f"{230 << 20}\n"
    endless = run("while True: print('a' * 100000)")
    assert "File too large" in endless.error and len(endless.stdout) == jail.OUTPUT_BYTES
    assert "Too many open files" in run("f = [open('/dev/null') for _ in range(300)]").error
    if kind == "namespaces":
        assert "No space left" in run("import os\nfor i in range(90): open(str(i), 'wb').write(bytes(1 << 20))").error


def test_large_results_cost_the_caller_little(kind):
    for value in "'x' * (5 << 20)", "[1] * (3 << 19)", "1 << (40 << 20)":
        outcomes, = run_modules("", [[{"eval": value, "names": {}}]], 30)
        assert outcomes[-1].error == "ValueError: the result is too large", value
    with sandbox.answer("import os\nwhile True: os.write(3, b'[]' * 9999)") as answer:
        _, _, records = answer.run({".stdin": "", "seconds": [9], "total": 9, "steps": None})
    assert len(records) == RECORD_BYTES
    alike = [{"int": hex(i * ((1 << 61) - 1))} for i in range(2000)]
    pairs = [[item, 0] for item in alike]
    for forged in {"Fraction": ["1e999999999"]}, {"set": alike}, {"Counter": [alike]}, {"dict": pairs}:
        with pytest.raises(ValueError):
            decode(forged)


def test_time(kind):
    assert run("while True: pass", seconds=0.3).kind == "timeout"
    assert run("import time; time.sleep(60)", seconds=0.1).kind == "timeout"
    assert run("import time; time.sleep(0.2); print(1)", seconds=0.1).kind == "ok"
    assert run("import os, time\nif os.fork():\n    time.sleep(60)\nwhile True: pass", seconds=0.1).kind == "timeout"
    burn = "import os, time\nif os.fork() == 0:\n    while time.process_time() < 0.8: pass\n    os._exit(0)\nos.wait()"
    assert run(burn, seconds=0.2).kind == "timeout" and run(burn, seconds=3).kind == "ok"
    unseen = ("import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nfor _ in range(5):\n"
              "    if os.fork() == 0:\n        while time.process_time() < 0.2: pass\n        os._exit(0)\n"
              "    try: os.wait()\n    except ChildProcessError: pass")
    assert run(unseen, seconds=0.5).kind == "timeout" and run(unseen, seconds=3).kind == "ok"
    assert run("import signal, time\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n"
               "    except OSError: pass\ntime.sleep(60)", seconds=0.1).kind == "timeout"
    assert run("", seconds=1).kind == "ok"


def test_what_a_process_used_counts_when_it_has_ended():
    proc = os.open("/proc", os.O_RDONLY)
    assert jail.cpu_of(["0"], proc, {"0": 50}) == 50 / os.sysconf("SC_CLK_TCK")  # no process has this number
    os.close(proc)


def test_a_loaded_machine_fails_no_right_program(kind):
    """Not even one whose work is done by threads of children, one after the other. The burners are in sessions of their
    own, as the sandbox is: where the scheduler makes a group for each session, all of one would weigh as much as it."""
    burn = [sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(burn, start_new_session=True) for _ in range(6 * len(os.sched_getaffinity(0)))]
    try:
        outcome = run("""
            import os, threading, time
            def work():
                while time.process_time() < 0.1: pass
            for _ in range(6):
                if os.fork() == 0:
                    threading.Thread(target=work).start()
                    break
                os.wait()
            """, seconds=1)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    assert outcome.kind == "ok" and 0.5 < outcome.seconds < 1


def test_a_supervisor_that_fails_leaves_no_folder(kind):
    with pytest.raises(RuntimeError, match="gave no answer"), sandbox.answer("") as answer:
        answer.run({".stdin": None, "seconds": [1], "total": 1})
    assert os.listdir(tempfile.gettempdir()) == []


def test_each_step_has_its_own_clock(kind):
    busy = ("import time\ndef f(s):\n    end = time.process_time() + s\n"
            "    while time.process_time() < end: pass\n    return s")
    steps = [{"call": "f", "args": [s]} for s in (0.3, 0.3, 0.3, 9.0, 0.0)]
    outcomes, = run_modules(busy, [steps], 0.6)
    assert [outcome.kind for outcome in outcomes] == ["ok"] * 4 + ["timeout"] and outcomes[3].value == 0.3
    outcomes, = run_modules(busy, [[steps[0], steps[3]]], 20, total=0.5)
    assert [outcome.kind for outcome in outcomes] == ["ok"] * 2 + ["timeout"]


def test_steps_that_sleep_have_a_limit_together(kind):
    """As forged ends of steps would: each is within its own limit, and a hundred would hold a core for a minute."""
    steps = [{"eval": "time.sleep(0.6)", "names": {}}] * 100
    outcomes, = run_modules("import time", [steps], 0.1, total=0.5)
    assert outcomes[-1].kind == "timeout" and len(outcomes) < 50


def test_values_come_back_as_they_are(kind):
    text = ("[None, True, 1, -2**70, 1.5, float('inf'), 'é\\n', (1, [2]), {1, 2}, frozenset({3}), {(1,): {'a': b'b'}}, "
            "1+2j]")
    assert value(text) == eval(text)
    own = value("[E(1), L([2]), D(a=3)]", "class E(int): pass\nclass L(list): pass\nclass D(dict): pass")
    assert [type(item) for item in own] == [int, list, dict]
    assert list(value("map(str, [1, 2])")) == ["1", "2"] and value("__import__('decimal').Decimal('0.1')") * 10 == 1
    assert value("__import__('fractions').Fraction(1, 3)") * 3 == 1
    assert repr(value("int")) == "<class 'int'>" and value("int") != int
    outcomes, = run_modules("a = []\na.append(a)", [[{"eval": "a", "names": {}}]], 5)
    assert "nested too deeply" in outcomes[-1].error
    pytest.importorskip("numpy")
    assert value("np.float64(0.5)", "import numpy as np") == 0.5
    assert value("np.arange(3)", "import numpy as np").items == [0, 1, 2]


# ---- The helper -----------------------------------------------------------------------------------------------------


def test_the_rest_is_dropped_with_the_answer(kind):
    with sandbox.answer("import time\nprint(time.sleep(float(input())))") as answer:
        assert next(answer.run_scripts(["0", "63.9", "0"], 100)).stdout == "None\n"
        start = time.monotonic()
    assert run("print(input())", "x" * 3_000_000).stdout == "x" * 3_000_000 + "\n" and time.monotonic() - start < 30
    large = run_scripts("print(input() * 2)", ["y" * 4_000_000, "z" * 40_000, "w" * 4_000_000], 5)
    assert [len(outcome.stdout) for outcome in large] == [8_000_001, 80_001, 8_000_001]


def test_the_rest_is_dropped_with_the_iterator(kind):
    """What was sent ahead is no reply to what is asked for next."""
    with sandbox.answer("import time\nprint(time.sleep(float(input())))") as answer:
        assert next(answer.run_scripts(["0", "63.9", "0"], 100)).stdout == "None\n"
        start = time.monotonic()
        assert [outcome.stdout for outcome in answer.run_scripts(["0.1", "0"], 100)] == ["None\n"] * 2
        assert time.monotonic() - start < 30


def test_a_reply_that_breaks_off_is_none():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def reply():
        for _ in range(2):
            _, fds, _, _ = socket.recv_fds(theirs, 1, 1)
            with socket.socket(fileno=fds[0]) as connection:
                connection.recv(9999)
                connection.sendall(b'{"sizes": [5, 0]}\nabc')

    thread = threading.Thread(target=reply)
    thread.start()
    with ours, theirs, pytest.raises(RuntimeError, match="gave no answer .its process died in the middle"):
        ask({}, {}, helper=ours)
    thread.join()


def test_a_signal_without_a_name():
    for status, name in (-9, "SIGKILL"), (-40, "40"):
        assert sandbox.outcome_of_end({"why": None, "status": status}).error == f"ProcessError: killed by signal {name}"


def test_a_helper_that_dies_is_replaced(kind):
    assert run("print(1)").stdout == "1\n"
    old = sandbox.process.pid
    sandbox.process.kill()
    sandbox.process.wait()
    assert run("print(2)").stdout == "2\n" and sandbox.process.pid != old


def test_a_helper_that_dies_in_a_test_is_replaced(kind):
    sandbox.start()
    old = sandbox.process

    def kill():
        deadline = time.monotonic() + 20
        while not processes("sleep", f"1.9{os.getpid()}") and time.monotonic() < deadline:
            time.sleep(0.02)
        old.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    program = f"import os\nprint(1, flush=True)\nos.execvp('sleep', ['sleep', '1.9{os.getpid()}'])"
    assert run(program).stdout == "1\n"
    killer.join()
    assert sandbox.process is not old


def test_everything_dies_with_us(kind, tmp_path):
    script = tmp_path / "parent.py"
    refuse = "spawn = sandbox.spawn\nsandbox.spawn = lambda n: 'refused' if n else spawn(False)\n" * (kind == "plain")
    script.write_text(f"import sys; sys.path.insert(0, {str(Path(sandbox.__file__).parent.parent)!r})\n"
                      "from sandbox import run as sandbox\n"
                      f"{refuse}"
                      "with sandbox.answer('import os\\nif os.fork() == 0: os.setsid()\\n"
                      f"os.execvp(\"sleep\", [\"sleep\", \"{LONG}\"])') as answer:\n"
                      "    list(answer.run_scripts([''], 30))")
    parent = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL)
    while len(processes("sleep", LONG)) < 2:
        assert parent.poll() is None
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while processes("sleep", LONG) or processes("jail.helper()", f"\0{parent.pid}\0"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_without_namespaces_it_warns_once(monkeypatch, capfd):
    sandbox.close()
    monkeypatch.setattr(sandbox, "spawn", lambda namespaces: "refused by the test" if namespaces else spawn(False))
    run("print(1)")
    run("print(1)")
    sandbox.close()
    assert capfd.readouterr().err.count("without namespaces (refused by the test)") == 1


def test_no_process_is_left_where_namespaces_are_refused(monkeypatch):
    def refuse(*args):
        raise OSError("refused by the test")

    monkeypatch.setattr(linux, "call", refuse)
    proc = os.open("/proc", os.O_RDONLY)
    before = jail.children_of(os.getpid(), proc)
    with pytest.raises(OSError, match="refused by the test"):
        linux.enter_namespaces(proc, False)
    assert jail.children_of(os.getpid(), proc) == before
    os.close(proc)


def test_a_helper_that_gives_no_answer(monkeypatch, capfd):
    answers, run_test = [], sandbox.Answer.run

    def fail_at_first(*args):
        answers.append(args)
        if len(answers) in fails:
            raise RuntimeError("no answer")
        return run_test(*args)

    sandbox.close()
    monkeypatch.setattr(sandbox, "spawn", lambda namespaces: spawn(False))
    monkeypatch.setattr(sandbox.Answer, "run", fail_at_first)
    fails = [1]
    sandbox.start()
    assert run("print(1)").stdout == "1\n" and capfd.readouterr().err.count("without namespaces (no answer)") == 1
    sandbox.close()
    answers, fails = [], [1, 2]
    with pytest.raises(BadInput, match="cannot be run safely on this machine: no answer; no answer"):
        sandbox.start()
    sandbox.close()
    monkeypatch.undo()
    for test in {}, {".stdin": "x" * 10_000_000}:  # the helper fails before it has read the second
        with pytest.raises(RuntimeError, match="gave no answer .TypeError"):
            ask([], test)


def test_a_sandbox_that_cannot_run_is_bad_input(monkeypatch):
    sandbox.close()
    monkeypatch.setattr(sandbox, "CANARY", "print(0)")
    with pytest.raises(BadInput, match="Programs cannot be run safely on this machine: .* known to be good"):
        run("print(1)")
    sandbox.close()
