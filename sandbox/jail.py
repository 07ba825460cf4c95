"""The helper process of run.py: `helper` with CONTROL_FD PARENT_PID CONFIG, in an interpreter without site packages.

    helper      enters namespaces, makes a small file tree its root, then `serve`: forks for each answer
    Supervisor  an answer, in that fork: prepares, and for each test forks, watches, reports
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


class Supervisor:
    """The process of one answer: forks for each of its tests, watches, reports. (run.Answer talks to it.)

    connection: a line of JSON for the program comes in, then one for each test, and for each a reply goes out.
    proc: a descriptor of /proc as the helper sees it.
    """

    def __init__(self, connection, proc, config):
        self.connection, self.proc, self.config = connection, proc, config
        self.helper, self.nonce = os.getppid(), os.urandom(8).hex()

    def run(self):
        """Until the other side hangs up. Leaves nothing."""
        requests = self.connection.makefile("rb")
        answer = json.loads(requests.readline())
        self.prepare()
        preload(answer)
        space = program.star_space() if answer["star_imports"] else {}
        gc.freeze()  # a collection in a test would copy what it looks at
        for line in requests:
            if self.test(json.loads(line.decode()) | answer, space) == "gone":
                return

    def prepare(self):
        """Give up the rights that no test needs, and set the limits that all tests share."""
        processes = PROCESSES
        if self.config["namespaces"]:
            linux.enter_user_namespace(self.proc)
            linux.give_up_rights(self.config["filter"])
        else:
            call("prctl", linux.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            if not self.config["nobody"]:
                processes += number_of_threads(os.geteuid())  # all of this user's count
        for name, value in (("NPROC", processes), ("NOFILE", 256), ("CORE", 0)):
            linux.limit(name, value)
        linux.limit("STACK", 120 << 20, spare=None)  # programs raise it without end: their memory bounds it, too
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def test(self, test, space):
        """Run the program once, and reply with a line of JSON, its output and its records. -> as `watch`"""
        scratch = Scratch(self.config)
        try:
            scratch.make(test)
            pid = self.fork(test, space, scratch)
            why, status, usage = self.end_of(pid, test, scratch.records)
        finally:
            scratch.drop()
        if why == "gone":
            return why
        output, records = scratch.read()
        header = {"why": why, "status": os.waitstatus_to_exitcode(status), "sizes": [len(output), len(records)],
                  "nonce": self.nonce, "seconds": usage.ru_utime + usage.ru_stime}
        self.connection.sendall(json.dumps(header).encode() + b"\n" + output + records)
        return why

    def fork(self, test, space, scratch):
        """-> the number of a new process, in which the program runs."""
        pid = linux.fork_into_namespace() if self.config["namespaces"] else os.fork()
        if pid:
            return pid
        try:
            confine(test, scratch, self.config)
            program.execute(test, space, self.nonce, proxy.judge)
        finally:
            os._exit(70)

    def end_of(self, pid, test, records):
        """Wait until the program ends, or end it. -> (why it was ended or None, its wait status, what it used)"""
        why, end = "fault", linux.pidfd(pid)
        try:
            why = self.watch(pid, end, test, records)
        finally:
            if why:
                os.kill(pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)  # for the first process of a namespace: when all of it have ended
            if not self.config["namespaces"]:
                end_children(self.proc)
        if end >= 0:
            os.close(end)
        return why, status, usage

    def watch(self, pid, end, test, records):
        """Wait for the end of the program. -> None, or why it must be killed: "timeout", "memory", "processes", "gone"
        (nobody wants the reply). end: its descriptor from linux.pidfd."""
        clocks, me = Clocks(pid, test, self.proc), os.readlink("self", dir_fd=self.proc)
        poll = select.poll()
        poll.register(self.connection, 0)  # reports a hang-up only
        if end >= 0:
            poll.register(end)  # the end of the program ends the wait below, too
        while True:
            hung_up = self.connection.fileno() in dict(poll.poll(20))
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return None
            if hung_up or os.getppid() != self.helper:
                return "gone"
            everyone = children_of(me, self.proc)
            finished_steps = os.pread(records, program.RECORD_BYTES, 0).count(self.nonce.encode())
            if clocks.over(everyone, finished_steps):
                return "timeout"
            if len(everyone) > 1 and memory_of(everyone, self.proc) > 2 * test["memory"]:
                return "memory"
            if len(everyone) > 2 * PROCESSES:  # no limit on processes binds some kinds of root
                return "processes"


def preload(answer):
    """Import what the program mentions."""
    for name in PRELOADED:
        if name in answer["Solution.py"] or name in program.STAR_IMPORTS and answer["star_imports"]:
            try:
                __import__(name)
            except ImportError:  # numpy, sortedcontainers: then the program lacks them, too
                continue


class Scratch:
    """The program's directory, with the program and its input; and the files of its output and its records.

    All is made anew for each test: flags and attributes of a file would outlive one.
    user: whom the directory belongs to; None: ours.
    """

    def __init__(self, config):
        self.namespaces, self.nobody = config["namespaces"], config["nobody"]
        self.folder = "/tmp" if self.namespaces else f"{config['temporary']}/sandbox-{os.urandom(8).hex()}"
        self.user = self.output = self.records = None

    def make(self, test):
        if self.namespaces:
            self.mount(SCRATCH_BYTES + 4 * len(test[".stdin"]))
        else:
            self.output, self.records = os.memfd_create("out"), os.memfd_create("records")
            os.mkdir(self.folder, 0o700)
            if self.nobody:
                self.user = linux.NOBODY + os.getpid() % 5_000
                os.chown(self.folder, self.user, self.user)
        for name in ("Solution.py", ".stdin"):
            write_file(f"{self.folder}/{name}", test[name], flags=os.O_CREAT)

    def mount(self, size):
        linux.mount_tmpfs(self.folder, f"size={size},nr_inodes=10000,mode=755")
        # Output to a file with a name, /dev/stdout, but not within what the program may fill up.
        linux.mount_tmpfs("/out", f"size={2 * OUTPUT_BYTES + (1 << 20)},nr_inodes=100,mode=555")
        self.output = os.open("/out/stdout", os.O_RDWR | os.O_CREAT, 0o600)
        self.records = os.open("/out", os.O_RDWR | os.O_TMPFILE, 0o600)

    def read(self):
        """-> what the program has put out, and its records; closes both files."""
        output = os.pread(self.output, os.fstat(self.output).st_size, 0)
        records = os.pread(self.records, min(os.fstat(self.records).st_size, program.RECORD_BYTES), 0)
        os.close(self.output)
        os.close(self.records)
        return output, records

    def drop(self):
        if self.namespaces:
            for path in (self.folder, "/out"):
                held = os.statvfs(path)
                if (held.f_blocks - held.f_bfree) * held.f_frsize > 1 << 16 or held.f_files - held.f_ffree > 8:
                    call("umount2", path, linux.MNT_DETACH)
            return  # a small one stays below the next, out of reach, and goes with the answer's mounts: that is faster
        # Other programs, as they know no limit of depth; a second time, because a program may close its folders to us.
        remove = 'rm -rf "$0" 2>/dev/null || { chmod -R u+rwx "$0"; rm -rf "$0"; }'
        os.waitpid(os.posix_spawnp("sh", ["sh", "-c", remove, self.folder], os.environ), 0)


# ---- What /proc tells of a test's processes -------------------------------------------------------------------------


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


class Clocks:
    """The time of a test: of CPU, of all, and in which it stood ready while others had the CPU, in seconds.

    Each step has its own clocks, and there are those of all steps together: a program may forge the ends of its steps.
    """

    def __init__(self, pid, test, proc):
        self.pid, self.test, self.proc = pid, test, proc
        self.start, self.ready = time.monotonic(), 0.0
        self.steps, self.step_start = 0, [0.0, 0.0, 0.0]  # how many have ended, and what the clocks said then
        self.own, self.waited = {}, {}  # kept for `cpu_of` and `ready_of`

    def over(self, pids, finished_steps):
        """Has the test, or its step, used its time? pids: its processes."""
        self.ready += ready_of(pids, self.proc, self.waited)
        cpu = time.clock_gettime((~self.pid << 3) | 2)  # the CPU clock of another process
        clocks = [max(cpu, cpu_of(pids, self.proc, self.own)), time.monotonic() - self.start, self.ready]
        if finished_steps > self.steps:
            self.steps, self.step_start = finished_steps, clocks
        of_step = [clock - start for clock, start in zip(clocks, self.step_start)]
        limits = self.test["seconds"]
        seconds = limits[min(self.steps, len(limits) - 1)]
        return over(*of_step, seconds) or over(*clocks, self.test["total"])


def over(cpu, wall, ready, seconds):
    """Has it used its `seconds` of CPU, or slept too long? (run.py)"""
    return cpu > seconds or wall - ready > 2 * seconds + 1 or wall > 10 * seconds + 10


# ---- A test ---------------------------------------------------------------------------------------------------------


def confine(test, scratch, config):
    """Turn this process into the program's: its files, its limits, no rights."""
    os.setpgid(0, 0)  # setsid would cost 2 ms: the scheduler makes a group for each session
    os.chdir(scratch.folder)
    given, nothing = os.open(".stdin", os.O_RDONLY), os.open("/dev/null", os.O_WRONLY)
    for own, fd in enumerate((given, scratch.output, nothing, scratch.records)):
        os.dup2(fd, own)
    os.closerange(4, 900)  # from 900 on: Python's folders, see `serve`
    linux.limit("AS", test["memory"], spare=64 << 20)
    linux.limit("FSIZE", OUTPUT_BYTES)
    linux.limit("CPU", int(min(test["total"], sum(test["seconds"]))) + 2, spare=1)
    if not config["namespaces"]:
        linux.give_up_rights(config["filter"])
        linux.landlock(config["sources"] + ["/dev", f"/proc/{os.getpid()}"], [scratch.folder, "/dev/null"])
        if scratch.user:
            os.setgroups([])
            os.setresgid(scratch.user, scratch.user, scratch.user)
            os.setresuid(scratch.user, scratch.user, scratch.user)
    linux.drop_capabilities()


# ---- The helper's loop ----------------------------------------------------------------------------------------------


def serve(control, parent, proc, config):
    """Fork a supervisor for each connection that comes in. Ends when the other side does."""
    set_up_python(config)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(0o022)
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
                supervise(socket.socket(fileno=fds[0]), proc, config)
            finally:
                os._exit(0)
        os.close(fds[0])


def supervise(connection, proc, config):
    """Be the process of an answer; what goes wrong is the reply."""
    try:
        Supervisor(connection, proc, config).run()
    except Exception as error:
        fault = {"fault": f"{type(error).__name__}: {error}"}
        connection.sendall(json.dumps(fault).encode() + b"\n")


def set_up_python(config):
    """What the programs find of it, and what would cost each of them time."""
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
    compile("0", "", "exec")  # makes the classes of `ast` once and not in each test
    if linux.ARCHITECTURE:
        config["filter"] = ctypes.create_string_buffer(linux.seccomp_filter(config["namespaces"]))
    if hasattr(linux.libc, "malloc_trim"):  # what compiling has left: every fork would copy it
        linux.libc.malloc_trim(0)


def helper():
    control, parent, config = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), json.loads(sys.argv[3])
    config["filter"] = None
    try:
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        write_file("self/oom_score_adj", "1000", proc)  # if memory runs out, a program ends before the engine
        config["nobody"] = linux.may_become_nobody()
        if config["namespaces"]:
            linux.enter_namespaces(proc, config["nobody"])
            fork_first_process(control, parent)
            linux.build_root(config["sources"])
            parent = os.getppid()
    except OSError as error:
        control.send(str(error).encode())
        os._exit(1)
    serve(control, parent, proc, config)


def fork_first_process(control, parent):
    """Go on as the first process of the namespace. The one before it stays and only watches: the first ends with it,
    and all others with the first."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    pid = os.fork()
    if pid:
        control.close()
        while os.getppid() == parent and not os.waitpid(pid, os.WNOHANG)[0]:
            signal.sigtimedwait([signal.SIGCHLD], 0.5)
        os._exit(0)
    call("prctl", linux.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
