"""The helper process of sandbox.py: `jail.py CONTROL_FD PARENT_PID CONFIG`, under an interpreter without site packages.

    helper      enters namespaces, makes a small file tree its root, then `serve`: forks for each answer
    supervise   an answer, in that fork: prepares, and for each test forks, watches, reports
    confine     in the test's process: limits, no rights, no system calls that only attacks need; then
    execution.execute runs the program there and writes its records

It imports little, because every test pays for each page of memory that a fork has to copy. sandbox.py says what all
this keeps in and what not.
"""
import ctypes
import fcntl
import json
import os
import re
import resource
import select
import signal
import socket
import stat
import struct
import sys
import time

import execution

MEMORY_BYTES = 1 << 30
OUTPUT_BYTES = 32 << 20
SCRATCH_BYTES = 64 << 20
PROCESSES = 64
NOBODY = 60_000  # the unprivileged user that root becomes
INSIDE = 1_000  # what any user is called inside
# Imported once per answer, if the program mentions them, and not once per test.
PRELOADED = execution.STAR_IMPORTS + ["decimal", "fractions", "dataclasses", "enum", "array", "threading", "queue",
                                      "numpy", "sortedcontainers"]


# ---- System calls ---------------------------------------------------------------------------------------------------

libc, python_libc = ctypes.CDLL(None, use_errno=True), ctypes.PyDLL(None)  # the second keeps Python's lock
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE, READ_ONLY, NOSUID, NODEV, MNT_DETACH = 4096, 16384, 1 << 18, 1, 2, 4, 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38
MOUNT_SETATTR, LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 442, 444, 445, 446
# Numbers that differ between processors. denied: socket (asyncio and multiprocessing do with socketpair), memfd_create,
# shmget, semget, msgget, mq_open, io_uring_setup, bpf, userfaultfd, perf_event_open, add_key, request_key, keyctl,
# setns, ptrace, process_vm_readv, process_vm_writev, clone3 (libc does without): network, memory beyond the limits,
# state that outlives a test, tracing, what only attacks on the kernel need.
# signals: kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_open, pidfd_send_signal.
MACHINE = {
    "x86_64": {"architecture": 0xC000003E, "clone": 56, "unshare": 272,
               "denied": [41, 319, 29, 64, 68, 240, 425, 321, 323, 298, 248, 249, 250, 308, 101, 310, 311, 435],
               "signals": [62, 200, 234, 129, 297, 434, 424]},
    "aarch64": {"architecture": 0xC00000B7, "clone": 220, "unshare": 97,
                "denied": [198, 279, 194, 190, 186, 180, 425, 280, 282, 241, 217, 218, 219, 268, 117, 270, 271, 435],
                "signals": [129, 130, 131, 138, 240, 434, 424]},
}.get(os.uname().machine)


def call(function, *args):
    """A libc function, or the system call of a number; OSError if it fails."""
    kinds = {str: lambda text: ctypes.c_char_p(text.encode()), int: ctypes.c_void_p}
    args = [kinds.get(type(arg), lambda arg: arg)(arg) for arg in args]
    if isinstance(function, int):
        result = libc.syscall(ctypes.c_long(function), *args)
    else:
        result = getattr(libc, function)(*args)
    if result == -1:
        raise OSError(ctypes.get_errno(), f"{function}: {os.strerror(ctypes.get_errno())}")
    return result


def landlock_version():
    """Of the kernel; below 1: it has none."""
    return libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, 1)


def write_file(path, text, folder=None, flags=0):
    data = memoryview(text.encode("utf-8", "surrogatepass"))
    fd = os.open(path, os.O_WRONLY | flags, 0o644, dir_fd=folder)
    while data:
        data = data[os.write(fd, data) :]
    os.close(fd)


def read_file(path, folder=None):
    """The text of a file of /proc; "" if its process has ended or this kernel does not have it."""
    try:
        with open(os.open(path, os.O_RDONLY, dir_fd=folder)) as file:
            return file.read()
    except OSError:
        return ""


def protect(path, flags, recursive=True):
    """Add flags to a mount."""
    call(MOUNT_SETATTR, -100, path, 0x8000 * recursive, struct.pack("QQQQ", flags, 0, 0, 0), 32)


def may_become_nobody():
    """Whether this is a root that may hand files to, and become, the users from NOBODY on."""
    rights = int(re.search(r"CapEff:\s*(\w+)", read_file("/proc/self/status"))[1], 16)
    users = [list(map(int, line.split())) for line in read_file("/proc/self/uid_map").splitlines()]
    return rights & 0b1100_0001 == 0b1100_0001 and os.geteuid() == 0 and any(  # CAP_CHOWN, CAP_SETGID, CAP_SETUID
        first <= NOBODY and NOBODY + 5_000 <= first + count for first, _, count in users)


def enter_namespaces(proc, root):
    """Put this process and its children into namespaces of their own, as any user may. Root's map is written from
    outside: it holds the unprivileged user, too, whom the programs run as, because no limit on processes binds root."""
    uid_map, gid_map = (f"0 0 1\n{INSIDE} {NOBODY} 1" if root else f"{INSIDE} {own} 1"
                        for own in (os.geteuid(), os.getegid()))
    me, (ready, go) = os.readlink("self", dir_fd=proc), os.pipe()
    if root:
        os.setgroups([])
    pid = os.fork()
    if pid == 0:
        try:
            os.close(go)
            if os.read(ready, 1):  # nothing, if unshare was refused
                if not root:
                    write_file(f"{me}/setgroups", "deny", proc)
                write_file(f"{me}/uid_map", uid_map, proc)
                write_file(f"{me}/gid_map", gid_map, proc)
                os._exit(0)
        finally:
            os._exit(1)
    try:
        call("unshare", NEWUSER | NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS)
        os.write(go, b"g")
    finally:
        os.close(go)
        status = os.waitpid(pid, 0)[1]
    if status:
        raise OSError("its user map was refused")


def build_root(sources):
    """Make a file tree of `sources`, all read-only, the root of this mount namespace. /tmp is mounted per test."""
    call("mount", "none", "/", None, MS_REC | MS_PRIVATE, None)
    devices = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")]
    held = {path: os.open(path, os.O_PATH) for path in sources + devices}
    new = "/tmp"  # what it held is still reached through `held`
    call("mount", "none", new, "tmpfs", 0, "mode=755")
    for path, fd in held.items():
        if any(path.startswith(other + "/") for other in sources):
            continue
        folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        os.makedirs(new + (path if folder else os.path.dirname(path)), exist_ok=True)
        if not folder:
            write_file(new + path, "", flags=os.O_CREAT)
        call("mount", f"/proc/self/fd/{fd}", new + path, None, MS_BIND | MS_REC, None)
        protect(new + path, READ_ONLY | NOSUID | (0 if path in devices else NODEV))
    for fd in held.values():
        os.close(fd)
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        if os.path.islink(f"/{name}") and not os.path.lexists(f"{new}/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{new}/{name}")
    for name in ("tmp", "out"):
        os.makedirs(f"{new}/{name}", exist_ok=True)
    for name, target in (("stdin", "/tmp/.stdin"), ("stdout", "/out/stdout"), ("stderr", "/dev/null"), ("shm", "/tmp")):
        os.symlink(target, f"{new}/dev/{name}")
    os.chdir(new)
    call("pivot_root", ".", ".")
    call("umount2", ".", MNT_DETACH)
    os.chdir("/")
    protect("/", READ_ONLY, recursive=False)


def landlock(read, write):
    """Files under `read` may be read and run, those under `write` written; no TCP, no signals or abstract sockets to
    others."""
    version = landlock_version()
    if version < 1:
        return
    every = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    attributes = struct.pack("QQQ", every, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = call(LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    for path, access in [(path, 0b1101) for path in read] + [(path, every) for path in write]:
        fd = os.open(path, os.O_PATH)
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= 0b1100_0000_0000_0111  # what applies to a file
        call(LANDLOCK_ADD_RULE, ruleset, 1, struct.pack("=Qi", access, fd), 0)
        os.close(fd)
    call(LANDLOCK_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def seccomp_filter(namespaces):
    """The filter that makes denied system calls fail; where no namespace hides other processes, signals too."""
    load, equal, any_bit, at_least, give = 0x20, 0x15, 0x45, 0x35, 0x06
    deny, unknown, allow, kill = 0x50001, 0x50026, 0x7FFF0000, 0x80000000  # EPERM, ENOSYS
    code = [(load, 0, 0, 4), (equal, 1, 0, MACHINE["architecture"]), (give, 0, 0, kill), (load, 0, 0, 0),
            (at_least, 0, 1, 0x40000000), (give, 0, 0, deny)]  # x32, the second numbering of x86-64
    for number in MACHINE["denied"] + ([] if namespaces else MACHINE["signals"]):
        code += [(equal, 0, 1, number), (give, 0, 0, unknown if number == 435 else deny)]
    for name in "clone", "unshare":  # no user namespace
        code += [(equal, 0, 4, MACHINE[name]), (load, 0, 0, 16), (any_bit, 0, 1, NEWUSER), (give, 0, 0, deny),
                 (give, 0, 0, allow)]
    return b"".join(struct.pack("HBBI", *line) for line in code + [(give, 0, 0, allow)])


def give_up_rights(config):
    """For this process and all that it starts: no more rights by running programs, no denied system calls."""
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if code := config["filter"]:
        call("prctl", PR_SET_SECCOMP, 2, struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(code)), 0, 0)


def fork_into_namespace():
    """fork, the child as the first process of a new namespace. (unshare and fork would do it, but only once.)"""
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = python_libc.syscall(MACHINE["clone"], NEWPID | signal.SIGCHLD, 0, 0, 0, 0)
    (ctypes.pythonapi.PyOS_AfterFork_Parent if pid else ctypes.pythonapi.PyOS_AfterFork_Child)()
    if pid < 0:
        raise OSError("a new process namespace was refused")
    return pid


def limit(name, soft, spare=0):
    """Set a resource limit, no higher than it may be; `spare`: how far the process itself may raise it."""
    which = getattr(resource, f"RLIMIT_{name}")
    hard = resource.getrlimit(which)[1]
    hard = soft + spare if hard == resource.RLIM_INFINITY else min(hard, soft + spare)
    resource.setrlimit(which, (min(soft, hard), hard))


# ---- An answer ------------------------------------------------------------------------------------------------------


def supervise(connection, proc, config):
    """Read a line of JSON for the program, then one for each test, and reply to each (sandbox.ask). Leaves nothing."""
    requests, helper = connection.makefile("rb"), os.getppid()
    program = json.loads(requests.readline() or b"null")
    processes = PROCESSES
    if config["namespaces"]:
        if os.geteuid() == 0:
            os.setresgid(INSIDE, INSIDE, INSIDE)
            os.setresuid(INSIDE, INSIDE, INSIDE)
        call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # our /proc/self is ours again
        call("unshare", NEWUSER | NEWNS | NEWIPC)  # a user namespace of its own: its processes are counted alone
        write_file("self/setgroups", "deny", proc)
        write_file("self/uid_map", f"{INSIDE} {INSIDE} 1", proc)
        write_file("self/gid_map", f"{INSIDE} {INSIDE} 1", proc)
    else:
        call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        if not config["nobody"]:
            processes += threads_of(os.geteuid())  # all of this user's count
    for name, value in (("NPROC", processes), ("NOFILE", 256), ("CORE", 0), ("STACK", 120 << 20)):
        limit(name, value)
    for name in PRELOADED:
        if name in program["Solution.py"] or name in execution.STAR_IMPORTS and program.get("star_imports"):
            try:
                __import__(name)
            except ImportError:  # numpy, sortedcontainers: then the program lacks them, too
                continue
    space = execution.star_space() if program.get("star_imports") else {}
    out, records, nonce = os.memfd_create("out"), os.memfd_create("records"), os.urandom(8).hex()
    if config["namespaces"]:  # output to a file with a name, /dev/stdout, but not within what the program may fill up
        call("mount", "none", "/out", "tmpfs", NOSUID | NODEV, f"size={OUTPUT_BYTES + (1 << 20)},mode=555")
        out = os.open("/out/stdout", os.O_RDWR | os.O_CREAT, 0o600)
    if config["namespaces"]:
        give_up_rights(config)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for line in requests:
        request = json.loads(line) | program
        for fd in (out, records):
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
        scratch, user = make_scratch(request, config)
        reader, writer = os.pipe()
        pid = fork_into_namespace() if config["namespaces"] else os.fork()
        if pid == 0:
            try:
                os.write(writer, os.readlink("self", dir_fd=proc).encode())
                confine(request, scratch, out, records, user, config)
                execution.execute(request, space, nonce)
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
            end_children(proc)
        drop_scratch(scratch, config)
        sizes = [os.fstat(out).st_size, min(os.fstat(records).st_size, execution.RECORD_BYTES)]
        header = {"why": why, "status": os.waitstatus_to_exitcode(status), "sizes": sizes, "nonce": nonce,
                  "seconds": usage.ru_utime + usage.ru_stime}
        connection.sendall(json.dumps(header).encode() + b"\n" + os.pread(out, sizes[0], 0)
                           + os.pread(records, sizes[1], 0))


def make_scratch(request, config):
    """-> the program's directory, with the program and its input, and the user whom it belongs to (None: ours)."""
    scratch, user, size = "/tmp", None, SCRATCH_BYTES + 4 * len(request[".stdin"])
    if config["namespaces"]:
        call("mount", "none", scratch, "tmpfs", NOSUID | NODEV, f"size={size},nr_inodes=10000,mode=755")
    else:
        scratch = f"{config['temporary']}/sandbox-{os.urandom(8).hex()}"
        os.mkdir(scratch, 0o700)
        if config["nobody"]:
            user = NOBODY + os.getpid() % 5_000
            os.chown(scratch, user, user)
    for name in ("Solution.py", ".stdin"):
        write_file(f"{scratch}/{name}", request[name], flags=os.O_CREAT)
    return scratch, user


def drop_scratch(scratch, config):
    if config["namespaces"]:
        held = os.statvfs(scratch)
        if (held.f_blocks - held.f_bfree) * held.f_frsize > 1 << 16 or held.f_files - held.f_ffree > 8:
            call("umount2", scratch, MNT_DETACH)
        return  # a small one stays below the next, out of reach, and goes with the answer's mounts: that is faster
    for folder, names, _ in os.walk(scratch):
        for name in names:
            if not os.path.islink(f"{folder}/{name}"):
                os.chmod(f"{folder}/{name}", 0o700)
    pid = os.posix_spawnp("rm", ["rm", "-rf", scratch], os.environ)  # unlike shutil.rmtree, it knows no limit of depth
    os.waitpid(pid, 0)


def children_of(pid, proc):
    """The numbers in /proc of all processes below `pid`."""
    children = read_file(f"{pid}/task/{pid}/children", proc).split()
    return children + [below for child in children for below in children_of(child, proc)]


def end_children(proc):
    """Kill what is below this process until there is nothing; as a subreaper it inherits the children of the killed."""
    while children := children_of(os.readlink("self", dir_fd=proc), proc):
        for child in children:
            try:
                os.kill(int(child), signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, 0):
                continue
        except ChildProcessError:
            continue


def threads_of(user):
    """How many threads this user has on the machine."""
    states = [read_file(f"/proc/{name}/status") for name in os.listdir("/proc") if name.isdigit()]
    own = [state for state in states if re.search(rf"Uid:\s*{user}\b", state)]
    return sum(int(re.search(r"Threads:\s*(\d+)", state)[1]) for state in own)


def memory_of(pids, proc):
    """Bytes that the processes hold and do not share with files."""
    sizes = [read_file(f"{pid}/statm", proc).split() for pid in pids]
    return sum(int(size[1]) - int(size[2]) for size in sizes if size) * resource.getpagesize()


def watch(pid, outside, request, records, nonce, connection, helper, proc):
    """Wait for the end of the program. -> None, or why it must be killed: "timeout", "memory", "processes", "gone"
    (nobody wants the reply).

    Each step has its own clock. Charged are its CPU time, and the wall time less that in which it stood ready to run
    while others had the CPU (/proc/PID/schedstat).
    """
    start, done, marks = time.monotonic(), 0, [0.0, 0.0, 0.0]
    poll = select.poll()
    poll.register(connection, 0)  # reports a hang-up only
    while True:
        signal.sigtimedwait([signal.SIGCHLD], 0.02)
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return None
        ready = int((read_file(f"{outside}/schedstat", proc).split() or [0, 0])[1]) / 1e9
        cpu = time.clock_gettime((~pid << 3) | 2)  # the CPU clock of another process
        clocks = [cpu, time.monotonic() - start, ready]
        if len(request["seconds"]) > 1:
            finished = os.pread(records, execution.RECORD_BYTES, 0).count(nonce.encode())
            if finished > done:
                done, marks = finished, clocks
        cpu, wall, ready = (clock - mark for clock, mark in zip(clocks, marks))
        seconds = request["seconds"][min(done, len(request["seconds"]) - 1)]
        if cpu > seconds or wall - ready > 2 * seconds + 1 or wall > 10 * seconds + 10 or clocks[0] > request["total"]:
            return "timeout"
        others = children_of(outside, proc)
        if others and memory_of([outside, *others], proc) > 2 * request["memory"]:
            return "memory"
        if len(others) > 2 * PROCESSES:  # no limit on processes binds some kinds of root
            return "processes"
        if os.getppid() != helper or poll.poll(0):
            return "gone"


# ---- A test ---------------------------------------------------------------------------------------------------------


def confine(request, scratch, out, records, user, config):
    """Turn this process into the program's: its files, its limits, no rights."""
    os.setpgid(0, 0)  # setsid would cost 2 ms: the scheduler makes a group for each session
    os.chdir(scratch)
    given, nothing = os.open(".stdin", os.O_RDONLY), os.open("/dev/null", os.O_WRONLY)
    for own, fd in enumerate((given, out, nothing, records)):
        os.dup2(fd, own)
    os.closerange(4, 900)  # from 900 on: Python's folders, see `serve`
    limit("AS", request["memory"], spare=64 << 20)
    limit("FSIZE", OUTPUT_BYTES)
    limit("CPU", int(min(request["total"], sum(request["seconds"]))) + 2, spare=1)
    if not config["namespaces"]:
        call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        landlock(config["sources"] + ["/dev", f"/proc/{os.getpid()}"], [scratch, "/dev/null"])
        if user:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        give_up_rights(config)
    call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


# ---- The helper's loop ----------------------------------------------------------------------------------------------


def serve(control, parent, proc, config):
    """Fork for each request. Ends when the other side does."""
    import gc
    import site

    site.setquit()  # exit and quit, as in any Python
    sys.path[:] = sys.path[1:] + config["packages"]  # not the folder of this file
    if not config["namespaces"] and config["nobody"]:  # programs run as a user who may not be let into, say, /root
        folders = [os.open(path, os.O_RDONLY) for path in sys.path if os.path.isdir(path)]
        sys.path[:] = [f"/proc/self/fd/{fcntl.fcntl(fd, fcntl.F_DUPFD, 900)}" for fd in folders]
    config["filter"] = MACHINE and ctypes.create_string_buffer(seccomp_filter(config["namespaces"]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.umask(0o022)
    compile("0", "", "exec")  # makes the classes of `ast` once and not in each test
    gc.freeze()
    control.send(b"ready")
    while os.getppid() == parent:
        if not select.select([control], [], [], 0.5)[0]:
            continue
        data, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        if os.fork() == 0:
            try:
                control.close()
                connection = socket.socket(fileno=fds[0])
                try:
                    supervise(connection, proc, config)
                except Exception as error:
                    fault = {"fault": f"{type(error).__name__}: {error}"}
                    connection.sendall(json.dumps(fault).encode() + b"\n")
            finally:
                os._exit(0)
        os.close(fds[0])


def helper():
    control, parent, config = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), json.loads(sys.argv[3])
    try:
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        write_file("self/oom_score_adj", "1000", proc)  # if memory runs out, a program ends before the engine
        config["nobody"] = may_become_nobody()
        if config["namespaces"]:
            enter_namespaces(proc, config["nobody"])
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
            pid = os.fork()
            if pid:  # this one only watches: the first process of the namespace ends with it, and all others with that
                control.close()
                while os.getppid() == parent and not os.waitpid(pid, os.WNOHANG)[0]:
                    signal.sigtimedwait([signal.SIGCHLD], 0.5)
                os._exit(0)
            call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            build_root(config["sources"])
            parent = os.getppid()
    except OSError as error:
        control.send(str(error).encode())
        os._exit(1)
    serve(control, parent, proc, config)


if __name__ == "__main__":
    helper()
