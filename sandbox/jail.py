"""The helper process of run.py: `helper` with CONTROL_FD PARENT_PID CONFIG, in an interpreter without site packages.

    helper      enters namespaces, makes a small file tree its root, then `serve`: forks for each answer
    supervise   an answer, in that fork: prepares, and for each test forks, watches, reports
    confine     in the test's process: limits, no rights, no system calls that only attacks need; then
    program.execute runs the program there and writes its records

It imports little, because every test pays for each page of memory that a fork has to copy. run.py says what all this
 keeps in and what not.
"""
import ctypes
import fcntl
import gc
import json
import os
import re
import select
import signal
import site
import socket
import sys
import time

from sandbox import linux, program, proxy
from sandbox.linux import call, list_folder, read_file, write_file

MEMORY_BYTES = 1 << 30
OUTPUT_BYTES = 32 << 20
SCRATCH_BYTES = 64 << 20
PROCESSES = 64
# Imported once per answer, if the program mentions them, and not once per test.
PRELOADED = program.STAR_IMPORTS + ["decimal", "fractions", "dataclasses", "enum", "array", "threading", "queue",
                                      "numpy", "sortedcontainers"]


# ---- An answer ------------------------------------------------------------------------------------------------------


def supervise(connection, proc, config):
    """Read a line of JSON for the program, then one for each test, and reply to each (run.ask). Leaves nothing."""
    requests, helper = connection.makefile("rb"), os.getppid()
    answer = json.loads(requests.readline())
    processes, nonce = PROCESSES, os.urandom(8).hex()
    if config["namespaces"]:
        linux.enter_user_namespace(proc)
        linux.give_up_rights(config["filter"])
    else:
        call("prctl", linux.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        if not config["nobody"]:
            processes += number_of_threads(os.geteuid())  # all of this user's count
    for name, value in (("NPROC", processes), ("NOFILE", 256), ("CORE", 0), ("STACK", 120 << 20)):
        linux.limit(name, value)
    for name in PRELOADED:
        if name in answer["Solution.py"] or name in program.STAR_IMPORTS and answer.get("star_imports"):
            try:
                __import__(name)
            except ImportError:  # numpy, sortedcontainers: then the program lacks them, too
                continue
    space = program.star_space() if answer.get("star_imports") else {}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    gc.freeze()  # a collection in a test would copy what it looks at
    for line in requests:
        request = json.loads(line.decode()) | answer
        scratch = "/tmp" if config["namespaces"] else f"{config['temporary']}/sandbox-{os.urandom(8).hex()}"
        try:
            user, out, records = make_scratch(scratch, request, config)
            pid = linux.fork_into_namespace() if config["namespaces"] else os.fork()
            if pid == 0:
                try:
                    confine(request, scratch, out, records, user, config)
                    program.execute(request, space, nonce, proxy.judge)
                finally:
                    os._exit(70)
            why, end = "fault", linux.pidfd(pid)
            try:
                why = watch(pid, end, request, records, nonce, connection, helper, proc)
            finally:
                if why:
                    os.kill(pid, signal.SIGKILL)
                _, status, usage = os.wait4(pid, 0)  # for the first process of a namespace: when all of it have ended
                if not config["namespaces"]:
                    end_children(proc)
        finally:
            drop_scratch(scratch, config)
        if why == "gone":
            return
        if end >= 0:
            os.close(end)
        sizes = [os.fstat(out).st_size, min(os.fstat(records).st_size, program.RECORD_BYTES)]
        header = {"why": why, "status": os.waitstatus_to_exitcode(status), "sizes": sizes, "nonce": nonce,
                  "seconds": usage.ru_utime + usage.ru_stime}
        connection.sendall(json.dumps(header).encode() + b"\n" + os.pread(out, sizes[0], 0)
                           + os.pread(records, sizes[1], 0))
        os.close(out)
        os.close(records)


def make_scratch(scratch, request, config):
    """Make the program's directory, with the program and its input. -> the user whom it belongs to (None: ours); the
    files of its output and its records. All is made anew for each test: flags and attributes of a file would outlive
    one."""
    user = None
    if config["namespaces"]:
        size = SCRATCH_BYTES + 4 * len(request[".stdin"])
        linux.mount_tmpfs(scratch, f"size={size},nr_inodes=10000,mode=755")
        # Output to a file with a name, /dev/stdout, but not within what the program may fill up.
        linux.mount_tmpfs("/out", f"size={2 * OUTPUT_BYTES + (1 << 20)},nr_inodes=100,mode=555")
        out = os.open("/out/stdout", os.O_RDWR | os.O_CREAT, 0o600)
        records = os.open("/out", os.O_RDWR | os.O_TMPFILE, 0o600)
    else:
        out, records = os.memfd_create("out"), os.memfd_create("records")
        os.mkdir(scratch, 0o700)
        if config["nobody"]:
            user = linux.NOBODY + os.getpid() % 5_000
            os.chown(scratch, user, user)
    for name in ("Solution.py", ".stdin"):
        write_file(f"{scratch}/{name}", request[name], flags=os.O_CREAT)
    return user, out, records


def drop_scratch(scratch, config):
    if config["namespaces"]:
        for path in (scratch, "/out"):
            held = os.statvfs(path)
            if (held.f_blocks - held.f_bfree) * held.f_frsize > 1 << 16 or held.f_files - held.f_ffree > 8:
                call("umount2", path, linux.MNT_DETACH)
        return  # a small one stays below the next, out of reach, and goes with the answer's mounts: that is faster
    # Other programs, as they know no limit of depth; a second time, because a program may close its folders to us.
    remove = 'rm -rf "$0" 2>/dev/null || { chmod -R u+rwx "$0"; rm -rf "$0"; }'
    os.waitpid(os.posix_spawnp("sh", ["sh", "-c", remove, scratch], os.environ), 0)


def children_of(pid, proc):
    """The numbers in /proc of all processes below `pid`: each thread has children of its own."""
    children = "".join(read_file(f"{thread}/children", proc) for thread in threads_of(pid, proc)).split()
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


def threads_of(pid, proc):
    return [f"{pid}/task/{thread}" for thread in list_folder(f"{pid}/task", proc)]


def number_of_threads(user):
    """How many this user has on the machine."""
    states = [read_file(f"/proc/{name}/status") for name in os.listdir("/proc") if name.isdigit()]
    own = [state for state in states if re.search(rf"Uid:\s*{user}\b", state)]
    return sum(int(re.search(r"Threads:\s*(\d+)", state)[1]) for state in own)


def memory_of(pids, proc):
    """Bytes that the processes hold, memory that they share included, files not."""
    states = [read_file(f"{pid}/status", proc) for pid in pids]
    return 1024 * sum(int(size) for state in states for size in re.findall(r"Rss(?:Anon|Shmem):\s*(\d+)", state))


def cpu_of(pids, proc, own):
    """Seconds of CPU that the processes have used, with those of their children that have ended. own: what each used
    itself when last seen, kept here: of a child that nobody waits for, its parent's count says nothing."""
    ticks = {pid: [*map(int, read_file(f"{pid}/stat", proc).rpartition(")")[2].split()[11:15])] for pid in pids}
    own.update({pid: sum(ticks[pid][:2]) for pid in pids if ticks[pid]})
    return max(sum(map(sum, ticks.values())), sum(own.values())) / os.sysconf("SC_CLK_TCK")


def ready_of(pids, proc, waited):
    """Seconds since the last call for which that one of their threads which waited longest stood ready while others had
    the CPU. waited: nanoseconds of each thread so far, kept here."""
    longest = 0
    for thread in [thread for pid in pids for thread in threads_of(pid, proc)]:
        for delay in read_file(f"{thread}/schedstat", proc).split()[1:2]:
            longest = max(longest, int(delay) - waited.get(thread, 0))
            waited[thread] = int(delay)
    return longest / 1e9


def watch(pid, end, request, records, nonce, connection, helper, proc):
    """Wait for the end of the program. -> None, or why it must be killed: "timeout", "memory", "processes", "gone"
    (nobody wants the reply).

    Each step has its own clocks, and there are those of all steps together: a program may forge the ends of its steps.
    """
    start, ready, done, marks = time.monotonic(), 0.0, 0, [0.0, 0.0, 0.0]
    me, own, waited = os.readlink("self", dir_fd=proc), {}, {}
    poll = select.poll()
    poll.register(connection, 0)  # reports a hang-up only
    if end >= 0:
        poll.register(end)  # the end of the program ends the wait below, too
    while True:
        hung_up = connection.fileno() in dict(poll.poll(20))
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return None
        if hung_up or os.getppid() != helper:
            return "gone"
        everyone = children_of(me, proc)
        ready += ready_of(everyone, proc, waited)
        cpu = time.clock_gettime((~pid << 3) | 2)  # the CPU clock of another process
        clocks = [max(cpu, cpu_of(everyone, proc, own)), time.monotonic() - start, ready]
        finished = os.pread(records, program.RECORD_BYTES, 0).count(nonce.encode())
        if finished > done:
            done, marks = finished, clocks
        of_step = [clock - mark for clock, mark in zip(clocks, marks)]
        seconds = request["seconds"][min(done, len(request["seconds"]) - 1)]
        if over(*of_step, seconds) or over(*clocks, request["total"]):
            return "timeout"
        if len(everyone) > 1 and memory_of(everyone, proc) > 2 * request["memory"]:
            return "memory"
        if len(everyone) > 2 * PROCESSES:  # no limit on processes binds some kinds of root
            return "processes"


def over(cpu, wall, ready, seconds):
    """Has it used its `seconds` of CPU, or slept too long? (run.py)"""
    return cpu > seconds or wall - ready > 2 * seconds + 1 or wall > 10 * seconds + 10


# ---- A test ---------------------------------------------------------------------------------------------------------


def confine(request, scratch, out, records, user, config):
    """Turn this process into the program's: its files, its limits, no rights."""
    os.setpgid(0, 0)  # setsid would cost 2 ms: the scheduler makes a group for each session
    os.chdir(scratch)
    given, nothing = os.open(".stdin", os.O_RDONLY), os.open("/dev/null", os.O_WRONLY)
    for own, fd in enumerate((given, out, nothing, records)):
        os.dup2(fd, own)
    os.closerange(4, 900)  # from 900 on: Python's folders, see `serve`
    linux.limit("AS", request["memory"], spare=64 << 20)
    linux.limit("FSIZE", OUTPUT_BYTES)
    linux.limit("CPU", int(min(request["total"], sum(request["seconds"]))) + 2, spare=1)
    if not config["namespaces"]:
        linux.give_up_rights(config["filter"])
        linux.landlock(config["sources"] + ["/dev", f"/proc/{os.getpid()}"], [scratch, "/dev/null"])
        if user:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
    linux.drop_capabilities()


# ---- The helper's loop ----------------------------------------------------------------------------------------------


def serve(control, parent, proc, config):
    """Fork for each request. Ends when the other side does."""
    site.setquit()  # exit and quit, as in any Python
    sys.argv = ["Solution.py"]
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(50_000)  # as LiveCodeBench's runner does
    sys.path[:] = sys.path[1:] + config["packages"]  # not the folder of this project
    if config["namespaces"]:
        sys.path[:] = map(linux.inside, sys.path)
    elif config["nobody"]:  # programs run as a user who may not be let into, say, /root
        folders = [os.open(path, os.O_RDONLY) for path in sys.path if os.path.isdir(path)]
        sys.path[:] = [f"/proc/self/fd/{fcntl.fcntl(fd, fcntl.F_DUPFD, 900)}" for fd in folders]
    config["filter"] = linux.ARCHITECTURE and ctypes.create_string_buffer(linux.seccomp_filter(config["namespaces"]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(0o022)
    compile("0", "", "exec")  # makes the classes of `ast` once and not in each test
    if hasattr(linux.libc, "malloc_trim"):  # what compiling has left: every fork would copy it
        linux.libc.malloc_trim(0)
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
        config["nobody"] = linux.may_become_nobody()
        if config["namespaces"]:
            linux.enter_namespaces(proc, config["nobody"])
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
            pid = os.fork()
            if pid:  # this one only watches: the first process of the namespace ends with it, and all others with that
                control.close()
                while os.getppid() == parent and not os.waitpid(pid, os.WNOHANG)[0]:
                    signal.sigtimedwait([signal.SIGCHLD], 0.5)
                os._exit(0)
            call("prctl", linux.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            linux.build_root(config["sources"])
            parent = os.getppid()
    except OSError as error:
        control.send(str(error).encode())
        os._exit(1)
    serve(control, parent, proc, config)
