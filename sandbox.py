"""Runs untrusted programs: the model's own, with a reward at stake.

    run_scripts(program, inputs, seconds) -> iterator of Outcomes        `python Solution.py < input`, for each input
    run_modules(program, runs, seconds) -> iterator of lists of Outcomes loads the program, then calls or evaluates

How. A small helper (this file under a minimal interpreter, no fork of the engine's process) forks a supervisor for each
answer, and that one a fresh process for each test. It is process 1 of a namespace: when it ends, is killed, or we die,
however we die, the kernel ends all that it has started. What counts is seen from outside (wait status, files that the
supervisor holds). Nothing that the program writes is a verdict: expected outputs never enter the sandbox, its results
are read as data (JSON, never pickle), and the caller compares them.

Covered, where the kernel allows user namespaces (Linux 5.12 or newer, x86-64 or ARM):
- files: the program sees Python, its packages, the system's directories of programs and libraries, and a directory of
  64 MiB that starts empty in each test and is all that it can write to; no home, no project, no /proc
- network: none. Processes: it sees and signals its own only. No rights, no namespaces of its own, few kernel interfaces
- memory: 1 GiB a process (`memory`), twice that for all its processes; if the machine runs out, the test goes first
- 64 processes and threads, 256 open files, 32 MiB of output, no core dumps
- time: `seconds` of CPU. On a loaded machine the time in which it stands ready but others have the CPU does not count.
  It may sleep: twice `seconds` + 1 s in all; and after ten times `seconds` + 10 s it ends in any case
Without user namespaces (many containers): Landlock keeps it to the same files, seccomp from the network and from
signalling others, root becomes an unprivileged user, the supervisor hunts down what is left. `start` warns once of what
is missing.
Not covered: faults of the kernel, timing and cache side channels, CPU and memory bandwidth taken from other tests, what
the directories of programs and libraries hold. Without namespaces also: the size of the directory, processes that fork
faster than they are killed, the list of processes. Only Linux.
"""

import atexit, builtins, collections, ctypes, fcntl, json, math, os, platform, resource, select, shutil, signal, site, socket
import stat, struct, subprocess, sys, sysconfig, tempfile, threading, time, types
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

MEMORY_BYTES = 1 << 30
OUTPUT_BYTES = 32 << 20
SCRATCH_BYTES = 64 << 20
PROCESSES = 64
NOBODY = 60_000  # the unprivileged user that root becomes
INSIDE = 1_000   # what any user is called inside
# Functional answers are written as on LeetCode, without imports; LiveCodeBench's runner puts these names before them.
STAR_IMPORTS = ("string re datetime collections heapq bisect copy math random statistics itertools functools operator io "
                "sys json builtins typing").split()


@dataclass(frozen=True)
class Outcome:
    """What a run, or one step of it, came to."""
    kind: str  # "ok" | "error" (an exception, or killed) | "timeout"
    stdout: str = ""
    value: object = None  # of a step; plain built-in types, see `decode`
    error: str = ""  # "ZeroDivisionError: division by zero"
    frames: list = field(default_factory=list)  # innermost first, at most 3, of the program: [line number, source, function]
    seconds: float = 0.0  # CPU


# ---- Values, as JSON that is safe to read -----------------------------------------------------------------------------


def encode(value, depth=0):
    """`value` as JSON-able data. Subclasses lose what they override: what equals everything here is a plain int there."""
    if depth > 100:
        raise RecursionError("the value is nested too deeply")
    down = depth + 1
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        value = int.__pos__(value)
        return value if abs(value) < 1 << 63 else {"int": hex(value)}
    if isinstance(value, float):
        return float.__pos__(value)
    if isinstance(value, str):
        return str.__str__(value)
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            items = [encode(item, down) for item in kind.__iter__(value)]
            return items if kind is list else {kind.__name__: items}
    if isinstance(value, dict):
        return {"dict": [[encode(key, down), encode(item, down)] for key, item in dict.items(value)]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {type(value).__name__: value.hex()}
    if isinstance(value, Decimal):
        return {"Decimal": Decimal.__str__(value)}
    if isinstance(value, Fraction):
        return {"Fraction": [encode(value.numerator), encode(value.denominator)]}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        plain = encode(value.tolist(), down)
        return plain if value.shape == () else {"ndarray": plain}
    if hasattr(value, "__iter__") and not isinstance(value, type):
        return {"iterator": [encode(item, down) for item in value]}
    return {"object": repr(value)[:300]}


class Opaque:
    """A value that has no plain form. It equals nothing else."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


class Array(Opaque):
    """A numpy array; .items are its values as nested lists."""

    def __init__(self, items):
        self.items, self.text = items, f"array({items!r})"


def decode(data):
    """The value of what `encode` gave; ValueError, TypeError, LookupError or AttributeError on anything else."""
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    (kind, body), = data.items()
    if kind == "int":
        return int(body, 16)
    if kind == "dict":
        return {decode(key): decode(item) for key, item in body}
    if kind in ("bytes", "bytearray"):
        return {"bytes": bytes, "bytearray": bytearray}[kind].fromhex(body)
    if kind == "Decimal":
        return Decimal(str(body))
    if kind == "object":
        return Opaque(str(body))
    body = decode(body)
    return {"tuple": tuple, "set": set, "frozenset": frozenset, "iterator": iter, "complex": lambda pair: complex(*pair),
            "Fraction": lambda pair: Fraction(*pair), "ndarray": Array}[kind](body)


# ---- In the helper: system calls ----------------------------------------------------------------------------------------

libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE, READ_ONLY, NOSUID, NODEV, MNT_DETACH = 4096, 16384, 1 << 18, 1, 2, 4, 2


def call(function, *args):
    """A libc function or the number of a system call; OSError if it fails."""
    args = [ctypes.c_char_p(arg.encode()) if isinstance(arg, str) else ctypes.c_void_p(arg) if isinstance(arg, int) else arg
            for arg in args]
    result = libc.syscall(ctypes.c_long(function), *args) if isinstance(function, int) else getattr(libc, function)(*args)
    if result == -1:
        raise OSError(ctypes.get_errno(), f"{function}: {os.strerror(ctypes.get_errno())}")
    return result


def write_file(path, text, folder=None):
    fd = os.open(path, os.O_WRONLY, dir_fd=folder)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def mount_attributes(path, flags, recursive=True):
    call(442, -100, path, 0x8000 * recursive, struct.pack("QQQQ", flags, 0, 0, 0), 32)  # mount_setattr


def enter_namespaces(proc):
    """Put this process and its children into namespaces of their own, as any user may. Root's map is written from outside:
    it holds the unprivileged user, too, whom the programs run as, because no limit on processes binds root."""
    root = os.geteuid() == 0
    uid_map, gid_map = (f"0 0 1\n{INSIDE} {NOBODY} 1" if root else f"{INSIDE} {own} 1" for own in (os.geteuid(), os.getegid()))
    me, (ready, go) = os.readlink("self", dir_fd=proc), os.pipe()
    if root:
        os.setgroups([])
    pid = os.fork()
    if pid == 0:
        try:
            os.read(ready, 1)
            if not root:
                write_file(f"{me}/setgroups", "deny", proc)
            write_file(f"{me}/uid_map", uid_map, proc)
            write_file(f"{me}/gid_map", gid_map, proc)
            os._exit(0)
        finally:
            os._exit(1)
    call("unshare", NEWUSER | NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS)
    os.write(go, b"g")
    if os.waitpid(pid, 0)[1]:
        raise OSError("its user map was refused")


def build_root(sources):
    """Make a file tree of `sources`, all read-only, the root of this mount namespace. /tmp and /dev/shm are mounted per test."""
    call("mount", "none", "/", None, MS_REC | MS_PRIVATE, None)
    held = {path: os.open(path, os.O_PATH) for path in sources + [f"/dev/{name}" for name in
                                                                 ("null", "zero", "full", "random", "urandom")]}
    new = "/tmp"  # whatever it held is still reached through `held`
    call("mount", "none", new, "tmpfs", 0, "mode=755")
    for path, fd in held.items():
        if any(path.startswith(other + "/") for other in held):
            continue
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            os.makedirs(new + path, exist_ok=True)
        else:
            os.makedirs(new + os.path.dirname(path), exist_ok=True)
            open(new + path, "x").close()
        call("mount", f"/proc/self/fd/{fd}", new + path, None, MS_BIND | MS_REC, None)
        mount_attributes(new + path, READ_ONLY | NOSUID | (0 if path.startswith("/dev/") else NODEV))
        os.close(fd)
    for name in ("bin", "lib", "lib64", "lib32", "sbin"):
        if os.path.islink("/" + name) and not os.path.lexists(f"{new}/{name}"):
            os.symlink(os.readlink("/" + name), f"{new}/{name}")
    os.makedirs(new + "/tmp", exist_ok=True)
    os.makedirs(new + "/dev/shm", exist_ok=True)
    os.symlink("/tmp/.stdin", new + "/dev/stdin")
    os.chdir(new)
    call("pivot_root", ".", ".")
    call("umount2", ".", MNT_DETACH)
    os.chdir("/")
    mount_attributes("/", READ_ONLY, recursive=False)


def landlock(read, write):
    """Files under `read` may be read and run, those under `write` written; no TCP, no signals or abstract sockets to the outside."""
    abi = libc.syscall(444, None, 0, 1)  # landlock_create_ruleset: the version that the kernel has
    if abi < 1:
        return
    every = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    attributes = struct.pack("QQQ", every, 3, 3)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = call(444, attributes, len(attributes), 0)
    for path, access in [(path, 0b1101) for path in read] + [(path, every) for path in write]:
        fd = os.open(path, os.O_PATH)
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= 0b1100_0000_0000_0111  # what applies to a file
        call(445, ruleset, 1, struct.pack("=Qi", access, fd), 0)  # landlock_add_rule
        os.close(fd)
    call(446, ruleset, 0)  # landlock_restrict_self
    os.close(ruleset)


@dataclass(frozen=True)
class Machine:
    """Numbers that differ between processors."""
    architecture: int  # AUDIT_ARCH_*
    clone: int
    socket: int
    denied: list  # memfd_create shmget semget msgget mq_open io_uring_setup bpf userfaultfd perf_event_open add_key
    # request_key keyctl unshare setns mount ptrace process_vm_readv process_vm_writev: memory beyond the limits, state
    # that outlives a test, tracing, namespaces, what only attacks on the kernel need
    signals: list  # kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open pidfd_send_signal


MACHINE = {"x86_64": Machine(0xC000003E, 56, 41, [319, 29, 64, 68, 240, 425, 321, 323, 298, 248, 249, 250, 272, 308, 165, 101,
                                                  310, 311], [62, 200, 234, 129, 297, 434, 424]),
           "aarch64": Machine(0xC00000B7, 220, 198, [279, 194, 190, 186, 180, 425, 280, 282, 241, 217, 218, 219, 97, 268, 40,
                                                     117, 270, 271], [129, 130, 131, 138, 240, 434, 424])
           }.get(platform.machine())


def seccomp_filter(namespaces):
    """The program that makes denied system calls fail with EPERM; where no namespace hides others, signals and sockets too."""
    load, equal, at_least, give, deny, allow, kill = 0x20, 0x15, 0x35, 0x06, 0x50001, 0x7FFF0000, 0x80000000
    code = [(load, 0, 0, 4), (equal, 1, 0, MACHINE.architecture), (give, 0, 0, kill), (load, 0, 0, 0),
            (at_least, 0, 1, 0x40000000), (give, 0, 0, deny)]  # x32, the second numbering of x86-64
    for number in MACHINE.denied + ([] if namespaces else MACHINE.signals):
        code += [(equal, 0, 1, number), (give, 0, 0, deny)]
    if not namespaces:  # sockets between its own processes only
        code += [(equal, 0, 3, MACHINE.socket), (load, 0, 0, 16), (equal, 1, 0, socket.AF_UNIX), (give, 0, 0, deny)]
    return b"".join(struct.pack("HBBI", *line) for line in code + [(give, 0, 0, allow)])


# ---- In the helper: one test ---------------------------------------------------------------------------------------------


def tree(proc, pid):
    """The process numbers below `pid`, as /proc has them."""
    try:
        with open(os.open(f"{pid}/task/{pid}/children", os.O_RDONLY, dir_fd=proc)) as file:
            children = file.read().split()
    except OSError:  # it has ended
        return []
    return children + [below for child in children for below in tree(proc, child)]


def number_in(proc, path, index):
    """A number of a /proc file; 0 where this kernel has none, or the process has ended."""
    try:
        with open(os.open(path, os.O_RDONLY, dir_fd=proc)) as file:
            return int(file.read().split()[index])
    except (OSError, IndexError):
        return 0


def memory_of(proc, pids):
    """Bytes that the processes hold and do not share."""
    pages = sum(number_in(proc, f"{pid}/statm", 1) - number_in(proc, f"{pid}/statm", 2) for pid in pids)
    return pages * resource.getpagesize()


def supervise(connection, proc, config):
    """The tests of one answer, in a fork of the helper. A line of JSON for the program, then one for each test; for each test
    a reply, see `ask`. Leaves nothing behind."""
    requests, helper = connection.makefile("rb"), os.getppid()
    program = json.loads(requests.readline() or b"null")
    if config["namespaces"]:
        if os.geteuid() == 0:
            os.setresgid(INSIDE, INSIDE, INSIDE)
            os.setresuid(INSIDE, INSIDE, INSIDE)
        call("prctl", 4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: our /proc/self is ours again
        call("unshare", NEWUSER | NEWNS | NEWIPC)  # a user namespace for the answer: its processes are counted alone
        write_file("self/setgroups", "deny", proc)
        write_file("self/uid_map", f"{INSIDE} {INSIDE} 1", proc)
        write_file("self/gid_map", f"{INSIDE} {INSIDE} 1", proc)
    else:
        call("prctl", 36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    out, records, nonce = os.memfd_create("out"), os.memfd_create("records"), os.urandom(8).hex()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for line in requests:
        request = json.loads(line) | program
        for fd in (out, records):
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
        scratch, user = make_scratch(request, config)
        reader, writer = os.pipe()
        pid = fork_as_first() if config["namespaces"] else os.fork()
        if pid == 0:
            try:
                os.write(writer, os.readlink("self", dir_fd=proc).encode())
                confine(request, scratch, out, records, user, config)
                execute(request, nonce)
            finally:
                os._exit(70)
        os.close(writer)
        outside = os.read(reader, 32).decode()  # the process's number in /proc
        os.close(reader)
        why = watch(pid, outside, request, records, nonce, connection, helper, proc)
        if why:
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)  # for the first process of a namespace: returns when all of it have ended
        if not config["namespaces"]:
            end_all(proc, os.readlink("self", dir_fd=proc))
        drop_scratch(scratch, config)
        sizes = [os.fstat(fd).st_size for fd in (out, records)]
        header = {"why": why, "status": os.waitstatus_to_exitcode(status), "sizes": sizes, "nonce": nonce,
                  "seconds": usage.ru_utime + usage.ru_stime}
        connection.sendall(json.dumps(header).encode() + b"\n" + os.pread(out, sizes[0], 0) + os.pread(records, sizes[1], 0))


def make_scratch(request, config):
    """-> the program's directory, with the program and its input, and the user it belongs to (None: ours)."""
    scratch, user = "/tmp", None
    if config["namespaces"]:
        call("mount", "none", scratch, "tmpfs", NOSUID | NODEV, f"size={SCRATCH_BYTES},nr_inodes=10000,mode=755")
        call("mount", scratch, "/dev/shm", None, MS_BIND, None)
    else:
        scratch = tempfile.mkdtemp(prefix="sandbox")
        if os.geteuid() == 0:
            user = NOBODY + os.getpid() % 5_000
            os.chown(scratch, user, user)
    for name in ("Solution.py", ".stdin"):
        with open(f"{scratch}/{name}", "w", encoding="utf-8", errors="surrogatepass", newline="") as file:
            file.write(request[name])
        os.chmod(f"{scratch}/{name}", 0o644)
    return scratch, user


def drop_scratch(scratch, config):
    if config["namespaces"]:
        for path in ("/dev/shm", scratch):
            call("umount2", path, MNT_DETACH)
        return
    for folder, names, _ in os.walk(scratch):
        os.chmod(folder, 0o700)
    subprocess.run(["rm", "-rf", scratch], stderr=subprocess.DEVNULL)  # unlike shutil.rmtree, it knows no limit of depth


def fork_as_first():
    """fork, the child in a new process namespace. (unshare, which needs no such care, may be called only once.)"""
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = ctypes.PyDLL(None).syscall(MACHINE.clone, NEWPID | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError("no new process namespace")
    return pid


def end_all(proc, outside):
    """Kill all children of this process until there are none; as a subreaper it inherits those of the killed."""
    while children := tree(proc, outside):
        for child in children:
            try:
                os.kill(int(child), signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, 0):
                pass
        except ChildProcessError:
            pass


def watch(pid, outside, request, records, nonce, connection, helper, proc):
    """Wait for the end of the program. -> None, or why it must be killed: "timeout", "memory", "gone" (nobody wants the reply).

    Each step has its own clock. Charged is the CPU time, and the wall time less the time that the program stood ready to
    run while others had the CPU.
    """
    start, done, seen = time.monotonic(), 0, b""
    marks = [0.0, 0.0, 0.0]
    poll = select.poll()
    poll.register(connection, 0)  # reports POLLHUP only
    while True:
        signal.sigtimedwait([signal.SIGCHLD], 0.02)
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return None
        clocks = [time.clock_gettime((~pid << 3) | 2), time.monotonic() - start,
                  number_in(proc, f"{outside}/schedstat", 1) / 1e9]
        seen = os.pread(records, OUTPUT_BYTES, 0) if len(request["seconds"]) > 1 else b""
        if seen.count(nonce.encode()) > done:
            done, marks = seen.count(nonce.encode()), clocks
        cpu, wall, ready = (clock - mark for clock, mark in zip(clocks, marks))
        limit = request["seconds"][min(done, len(request["seconds"]) - 1)]
        if cpu > limit or wall - ready > 2 * limit + 1 or wall > 10 * limit + 10 or clocks[0] > request["total"]:
            return "timeout"
        others = tree(proc, outside)
        if others and memory_of(proc, [outside, *others]) > 2 * request["memory"]:
            return "memory"
        if os.getppid() != helper or poll.poll(0):
            return "gone"


def threads_of(user):
    """How many threads this user has on the machine."""
    threads = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid == user:
                threads += len(os.listdir(f"/proc/{name}/task"))
        except OSError:  # it has ended
            continue
    return threads


def confine(request, scratch, out, records, user, config):
    """Turn this process into the program's: its files, its limits, no rights."""
    os.setsid()
    os.chdir(scratch)
    os.dup2(os.open(".stdin", os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
    os.dup2(records, 3)
    os.closerange(4, 900)  # from 900 on: the folders of Python for an unprivileged user, see `serve`
    processes = PROCESSES
    if not config["namespaces"] and not user:  # then all of this user's processes and threads count
        processes += threads_of(os.getuid())
    seconds = math.ceil(max(sum(request["seconds"]), 1))
    for name, soft, spare in (("AS", request["memory"], 64 << 20), ("FSIZE", OUTPUT_BYTES, 0), ("NOFILE", 256, 0),
                              ("NPROC", processes, 0), ("CPU", seconds + 1, 1), ("CORE", 0, 0), ("STACK", 120 << 20, 0)):
        which = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(which)[1]
        hard = soft + spare if hard == resource.RLIM_INFINITY else min(hard, soft + spare)
        resource.setrlimit(which, (min(soft, hard), hard))
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    if config["namespaces"]:
        landlock(["/"], [scratch, "/dev/shm", "/dev/null"])
    else:
        landlock(config["sources"] + ["/dev", f"/proc/{os.getpid()}"], [scratch, "/dev/null"])
    call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))
    code = config["seccomp"]
    call("prctl", 22, 2, struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(code)), 0, 0)  # PR_SET_SECCOMP
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def describe(error, lines):
    """An exception as a record: its type and message, its innermost three frames within the program."""
    frames, trace = collections.deque(maxlen=3), error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == "Solution.py":
            frames.appendleft([trace.tb_lineno, trace.tb_frame.f_code.co_name])
        trace = trace.tb_next
    message = str(error)
    if isinstance(error, SyntaxError) and error.filename == "Solution.py":
        frames, message = [[error.lineno or 1, "<module>"]], str(error.msg)
    frames = [[line, lines[line - 1].strip()[:500] if 0 < line <= len(lines) else "", name] for line, name in list(frames)]
    return {"error": (type(error).__name__ + (f": {message}" if message else ""))[:2000], "frames": frames}


def execute(request, nonce):
    """Run the program, write the records, end this process."""
    import gc

    program, script = request["Solution.py"], request["steps"] is None
    lines, exit_now, write, dumps = program.split("\n"), os._exit, os.write, json.dumps
    folders = sys.path

    def record(data):
        text = memoryview(f"{nonce}{dumps(data)}\n".encode())
        while text:
            text = text[write(3, text):]

    def failed(error):
        resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)  # room to say so
        try:
            data = describe(error, lines)
        except BaseException as second:  # its __str__ is the program's
            data = {"error": type(error).__name__, "frames": []}
        record(data)

    sys.path, sys.argv = ["", *folders], ["Solution.py"]
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.__stdout__ = out = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.__stderr__ = open(2, "w", encoding="utf-8", closefd=False, errors="backslashreplace")
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(50_000)  # as LiveCodeBench's runner does
    name = "__main__" if script else "Solution"
    module = sys.modules[name] = types.ModuleType(name)
    space = module.__dict__
    space.update(__builtins__=builtins, __file__=os.path.abspath("Solution.py"))
    try:
        if not script:
            if request["star_imports"]:
                sys.setrecursionlimit(50_000)
                for other in STAR_IMPORTS:
                    exec(f"from {other} import *", space)
                for other in STAR_IMPORTS:
                    exec(f"import {other}", space)
            exec("\n".join(request["imports"]), space)
        exec(compile(program, "Solution.py", "exec", dont_inherit=True), space)
    except SystemExit:
        pass
    except BaseException as error:
        failed(error)
        exit_now(0)
    if script:
        try:
            if "threading" in sys.modules:
                sys.modules["threading"]._shutdown()
            atexit._run_exitfuncs()
            for stream in (sys.stdout, out):
                if not stream.closed:
                    stream.flush()
            space.clear()  # files that the program left open are written
            gc.collect()
        except SystemExit:
            pass
        except BaseException as error:
            failed(error)
        exit_now(0)
    record({"value": None})
    for step in request["steps"]:
        try:
            space.update({name: decode(value) for name, value in step.get("names", {}).items()})
            if "call" in step:
                owner = space.get("Solution")
                function = getattr(owner(), step["call"], None) if isinstance(owner, type) else None
                if function is None and step["call"] not in space:
                    raise NameError(f"name '{step['call']}' is not defined")
                value = (function or space[step["call"]])(*map(decode, step["args"]))
            elif "eval" in step:
                value = eval(compile(step["eval"], "<test>", "eval", dont_inherit=True), space)
            else:
                value = exec(compile(step["exec"], "<test>", "exec", dont_inherit=True), space)
            record({"value": encode(value)})
        except BaseException as error:
            failed(error)
            break
    exit_now(0)


# ---- In the helper: its loop --------------------------------------------------------------------------------------------


def serve(control, parent, proc, config):
    """Fork for each request. Ends when the other side does."""
    for name in STAR_IMPORTS + ["traceback", "decimal", "fractions", "dataclasses", "enum", "array", "threading", "queue"]:
        __import__(name)
    import gc

    config["seccomp"] = ctypes.create_string_buffer(seccomp_filter(config["namespaces"]))
    site.setquit()  # exit and quit, as in any Python
    sys.path[:] = config["paths"]
    if not config["namespaces"] and os.geteuid() == 0:  # programs run as a user who may not be let into, say, /root
        sys.path[:] = [f"/proc/self/fd/{fcntl.fcntl(os.open(path, os.O_RDONLY), fcntl.F_DUPFD, 900)}"
                       for path in config["paths"] if os.path.isdir(path)]
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control.send(b"ready")
    while select.select([control], [], [], 0.5)[0] or os.getppid() == parent:
        if not select.select([control], [], [], 0)[0]:
            continue
        data, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        if os.fork() == 0:
            try:
                control.close()
                with socket.socket(fileno=fds[0]) as connection:
                    supervise(connection, proc, config)
                os._exit(0)
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(fds[0])


def helper():
    """The helper process: `sandbox.py CONTROL_FD PARENT_PID CONFIG`."""
    control, parent, config = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), json.loads(sys.argv[3])
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    write_file("self/oom_score_adj", "1000", proc)
    if not config["namespaces"]:
        return serve(control, parent, proc, config)
    try:
        enter_namespaces(proc)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if pid:  # only watches: process 1 ends with us, and everything with process 1
            control.close()
            while os.getppid() == parent and not os.waitpid(pid, os.WNOHANG)[0]:
                signal.sigtimedwait([signal.SIGCHLD], 0.5)
            os._exit(0)
        call("prctl", 1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        build_root(config["sources"])
    except OSError as error:
        control.send(f"{error}".encode())
        os._exit(1)
    serve(control, 0, proc, config)
    os._exit(0)


# ---- In the caller's process ----------------------------------------------------------------------------------------------

CANARY = "import math, sys\nprint(math.isqrt(int(input())), len(sys.stdin.read()))"
control = process = None
lock = threading.RLock()
slots = threading.BoundedSemaphore(len(os.sched_getaffinity(0)))  # answers tested at a time, one test each


def start():
    """Start the helper unless it runs. -> our end of its socket; BadInput if a program known to be good does not pass."""
    global control, process
    from data import BadInput  # here, because the helper imports nothing of the project

    with lock:
        if process and process.poll() is None:
            return control
        again, problems = process is not None, []
        close()
        for namespaces in (True, False):
            reply = spawn(namespaces) if MACHINE or not namespaces else f"unknown processor {platform.machine()}"
            if reply == "ready":
                outcome = next(run_scripts(CANARY, ["144\nabc"], 20, slots=threading.Semaphore()))
                if outcome.stdout == "12 3\n":
                    break
                reply = f"a program known to be good came to {outcome}"
            problems.append(reply)
            close()
        else:
            raise BadInput(f"Programs cannot be run safely on this machine: {'; '.join(problems)}.")
        missing = [] if namespaces else [f"namespaces ({problems[0]})"]
        if libc.syscall(444, None, 0, 1) < 1:
            missing.append("Landlock")
        if not MACHINE:
            missing.append("seccomp")
        if missing and not again:
            print(f"warning: the sandbox for programs is weaker here, without {', '.join(missing)}", file=sys.stderr)
        return control


def spawn(namespaces):
    """Start a helper with or without namespaces. -> "ready", or why not."""
    global control, process
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    packages = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    stdlib = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    paths = list(dict.fromkeys([*stdlib, f"{stdlib[1]}/lib-dynload", *packages]))
    sources = ["/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/nix/store", sys.base_prefix]
    sources = list(dict.fromkeys(os.path.realpath(path) for path in sources + paths if os.path.exists(path)))
    config = json.dumps({"namespaces": namespaces, "paths": paths, "sources": sources})
    process = subprocess.Popen(
        [getattr(sys, "_base_executable", sys.executable), "-s", "-S", "-B", "-X", "utf8", os.path.abspath(__file__),
         str(theirs.fileno()), str(os.getpid()), config], pass_fds=[theirs.fileno()], cwd="/", start_new_session=True,
        stdin=subprocess.DEVNULL, env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp", "PYTHONHASHSEED": "0",
                                       "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
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


def ask(program, tests, slots=slots):
    """One answer: `program` and `tests` are requests as `supervise` reads them.
    -> iterator of (header, output, records); RuntimeError if the helper fails twice at a test."""
    done = failures = 0
    while done < len(tests):
        helper = start()
        ours, theirs = socket.socketpair()
        with slots, ours, ours.makefile("rb") as replies:
            try:
                with theirs:
                    socket.send_fds(helper, [b"t"], [theirs.fileno()])
                ours.sendall(json.dumps(program).encode() + b"\n")
                for test in tests[done:]:
                    ours.sendall(json.dumps(test).encode() + b"\n")
                    header = json.loads(replies.readline() or b"null")
                    if header is None:
                        raise ConnectionError
                    output, records = (replies.read(size) for size in header["sizes"])
                    done, failures = done + 1, 0
                    yield header, output, records
            except (OSError, ValueError) as error:  # the helper died; `start` makes another
                failures += 1
                if failures == 2:
                    raise RuntimeError("the sandbox gave no answer") from error


def outcome_of_end(header):
    """How a program came to its end, for the caller that has no record of an exception."""
    if header["why"] == "timeout":
        return Outcome("timeout")
    if header["why"]:
        return Outcome("error", error=f"MemoryError: {header['why']}")
    if header["status"] < 0:
        return Outcome("error", error=f"ProcessError: killed by signal {signal.Signals(-header['status']).name}")
    return Outcome("error", error=f"ProcessError: exit status {header['status']}")


def read_records(header, records):
    """-> Outcomes of the steps that were recorded. What the program itself wrote there is data, and may be broken."""
    outcomes = []
    for line in records.split(b"\n"):
        if line.startswith(header["nonce"].encode()):
            try:
                record = json.loads(line[len(header["nonce"]):])
                if "error" in record:
                    frames = [[int(line), str(source), str(name)] for line, source, name in record["frames"][:3]]
                    outcomes.append(Outcome("error", error=str(record["error"]), frames=frames))
                else:
                    outcomes.append(Outcome("ok", value=decode(record["value"])))
            except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
                outcomes.append(Outcome("error", error="ValueError: the result cannot be read"))
    return outcomes


def run_scripts(program, inputs, seconds, memory=MEMORY_BYTES, slots=slots):
    """Run `program` as `__main__` on each text of `inputs`. -> iterator of Outcomes; SystemExit is a normal end.

    The next test starts when the next Outcome is asked for.
    """
    tests = [{".stdin": text, "seconds": [seconds], "total": seconds, "steps": None} for text in inputs]
    for header, output, records in ask({"Solution.py": program, "memory": memory}, tests, slots):
        outcomes = read_records(header, records)
        if header["why"] or header["status"]:
            outcomes = [outcome_of_end(header)]
        last = outcomes[-1] if outcomes else Outcome("ok")
        yield Outcome(last.kind, output.decode("utf-8", "replace"), None, last.error, last.frames, header["seconds"])


def run_modules(program, runs, seconds, total=math.inf, imports=(), star_imports=False, memory=MEMORY_BYTES):
    """For each of `runs`, in a fresh process: load `program` as a module that is not `__main__`, then take the steps of the run
    up to the first that fails.

    A step: {"call": function name, "args": [...]} (a method of a fresh Solution(), where there is one, or a function),
    {"eval": expression}, or {"exec": statements}; with "names": {name: value} to set before. Values as `encode` gives them.
    seconds: for each step and for the loading, or a list with the loading first; total: CPU seconds for a run.
    imports: lines of code to run first; star_imports: STAR_IMPORTS before them.
    -> iterator of lists of Outcomes: of the loading and of the steps, ending with the first that is not "ok".
    """
    tests = []
    for steps in runs:
        limits = list(seconds) if isinstance(seconds, (list, tuple)) else [seconds] * (1 + len(steps))
        tests.append({".stdin": "", "seconds": limits, "total": min(total, sum(limits)), "steps": steps})
    shared = {"Solution.py": program, "memory": memory, "imports": list(imports), "star_imports": star_imports}
    for test, (header, _, records) in zip(tests, ask(shared, tests)):
        outcomes = read_records(header, records)[: len(test["seconds"])]
        if len(outcomes) < len(test["seconds"]) and all(outcome.kind == "ok" for outcome in outcomes):
            outcomes.append(outcome_of_end(header))
        yield outcomes


if __name__ == "__main__":
    helper()
