"""What jail.py asks of the Linux kernel: namespaces, mounts, Landlock, seccomp, limits.

By number, as Python has no names for most of it. Nothing here knows of programs and tests.
"""
import ctypes
import os
import re
import resource
import signal
import stat
import struct

NOBODY = 60_000  # the unprivileged user that root becomes
INSIDE = 1_000  # what any user is called inside

libc = ctypes.CDLL(None, use_errno=True)
# Looked up once here and not in each test.
capset, clone = libc.capset, ctypes.PyDLL(None).syscall  # the second keeps Python's lock
before_fork, parent_after_fork, child_after_fork = (
    getattr(ctypes.pythonapi, f"PyOS_{name}") for name in ("BeforeFork", "AfterFork_Parent", "AfterFork_Child"))
CAPABILITIES, NO_CAPABILITIES = struct.pack("Ii", 0x20080522, 0), bytes(24)
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE, READ_ONLY, NOSUID, NODEV, MNT_DETACH = 4096, 16384, 1 << 18, 1, 2, 4, 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38
MOUNT_SETATTR, LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 442, 444, 445, 446

# ---- System calls by name -------------------------------------------------------------------------------------------

X86_64, AARCH64 = 0xC000003E, 0xC00000B7  # as a filter sees the processor
ARCHITECTURE = {"x86_64": X86_64, "aarch64": AARCH64}.get(os.uname().machine)  # None: no filter, no namespaces
CALLS = {  # the numbers on x86-64 and on ARM
    "clone": (56, 220), "unshare": (272, 97), "fcntl": (72, 25), "ioctl": (16, 29), "socketpair": (53, 199),
    # Network. asyncio and multiprocessing do with socketpair.
    "socket": (41, 198),
    # Memory beyond the limits, and state that outlives a test.
    "memfd_create": (319, 279), "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # What only attacks on the kernel need.
    "io_uring_setup": (425, 425), "bpf": (321, 280), "userfaultfd": (323, 282), "perf_event_open": (298, 241),
    "setns": (308, 268),
    # Tracing.
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    # Its flags lie in memory, where no filter can read them. libc does without it if the kernel has none.
    "clone3": (435, 435),
    # Signals to other processes, and their priorities.
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "setpriority": (141, 140), "ioprio_set": (251, 30),
    # Limits and processors of a process, which is the first argument.
    "prlimit64": (302, 261), "sched_setaffinity": (203, 122), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "sched_setattr": (314, 274)}
DENIED = ("socket memfd_create shmget semget msgget mq_open io_uring_setup bpf userfaultfd perf_event_open add_key "
          "request_key keyctl setns ptrace process_vm_readv process_vm_writev").split()
# Where other processes are in sight, also these; and ONLY_SELF for the caller itself alone.
DENIED_IN_SIGHT = ("kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open pidfd_send_signal setpriority "
                   "ioprio_set").split()
ONLY_SELF = "prlimit64 sched_setaffinity sched_setparam sched_setscheduler sched_setattr".split()
# fcntl and ioctl that make the kernel send signals to another process; sockets that can send to any that has a path.
F_SETOWN, F_SETOWN_EX, FIOSETOWN, SIOCSPGRP, SOCK_DGRAM = 8, 15, 0x8901, 0x8902, 2


def number_of(name, architecture=ARCHITECTURE):
    """The number of a system call."""
    return CALLS[name][architecture == AARCH64]


def call(function, *args):
    """A libc function, or the system call of a number; OSError if it fails."""
    args = [arg.encode() if isinstance(arg, str) else ctypes.c_void_p(arg) if isinstance(arg, int) else arg
            for arg in args]
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
        with open(os.open(path, os.O_RDONLY, dir_fd=folder), errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def list_folder(path, folder):
    """The names in a folder of /proc; none if its process has ended."""
    try:
        fd = os.open(path, os.O_RDONLY, dir_fd=folder)
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)
    except OSError:
        return []


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


def enter_user_namespace(proc):
    """A user and mount namespace within those: what runs in it has rights there only, and is counted alone."""
    if os.geteuid() == 0:
        os.setresgid(INSIDE, INSIDE, INSIDE)
        os.setresuid(INSIDE, INSIDE, INSIDE)
    call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # our /proc/self is ours again
    call("unshare", NEWUSER | NEWNS | NEWIPC)
    write_file("self/setgroups", "deny", proc)
    for ids in "uid_map", "gid_map":
        write_file(f"self/{ids}", f"{INSIDE} {INSIDE} 1", proc)


def mount_tmpfs(path, options):
    call("mount", "none", path, "tmpfs", NOSUID | NODEV, options)


def inside(path):
    """Where `build_root` puts a file or folder: /tmp is the program's."""
    return f"/packages{path}" if path.startswith("/tmp/") else path


def bind(fd, place):
    """Let the file or folder of a descriptor be seen at `place`, too."""
    folder = stat.S_ISDIR(os.fstat(fd).st_mode)
    os.makedirs(place if folder else os.path.dirname(place), exist_ok=True)
    if not folder:
        write_file(place, "", flags=os.O_CREAT)
    call("mount", f"/proc/self/fd/{fd}", place, None, MS_BIND | MS_REC, None)


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
        bind(fd, new + inside(path))
        protect(new + inside(path), READ_ONLY | NOSUID | (0 if path in devices else NODEV))
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


class Filter:
    """A seccomp filter in the kernel's small machine language: a list of (operation, steps to jump over if true, if
    false, value). Between two rules the number of the system call is loaded. `data`: what the kernel is given."""

    LOAD, EQUAL, ANY_BIT, AT_LEAST, GIVE = 0x20, 0x15, 0x45, 0x35, 0x06
    NUMBER, PROCESSOR, ARGUMENTS = 0, 4, 16  # where they stand in what a filter may load
    NOT_PERMITTED, NO_SUCH_CALL, ALLOW, KILL = 0x50001, 0x50026, 0x7FFF0000, 0x80000000  # EPERM, ENOSYS

    def __init__(self, architecture):
        self.architecture = architecture
        self.code = [(self.LOAD, 0, 0, self.PROCESSOR),
                     (self.EQUAL, 1, 0, architecture),
                     (self.GIVE, 0, 0, self.KILL),
                     (self.LOAD, 0, 0, self.NUMBER),
                     (self.AT_LEAST, 0, 1, 0x40000000),  # x32, the second numbering of x86-64
                     (self.GIVE, 0, 0, self.NOT_PERMITTED)]

    def deny(self, call, error=NOT_PERMITTED):
        self.code += [(self.EQUAL, 0, 1, number_of(call, self.architecture)),
                      (self.GIVE, 0, 0, error)]

    def deny_if(self, call, argument, value, comparison=EQUAL):
        """Deny a call whose argument, counted from 0, is `value`, or has one of its bits."""
        self.check(call, argument, (comparison, 0, 1, value))

    def only_self(self, call):
        """Deny a call whose first argument is a process, unless that is 0, the caller."""
        self.check(call, 0, (self.EQUAL, 1, 0, 0))

    def check(self, call, argument, comparison):
        """`comparison` looks at the argument and jumps over the denial or not."""
        self.code += [(self.EQUAL, 0, 4, number_of(call, self.architecture)),
                      (self.LOAD, 0, 0, self.ARGUMENTS + 8 * argument),
                      comparison,
                      (self.GIVE, 0, 0, self.NOT_PERMITTED),
                      (self.LOAD, 0, 0, self.NUMBER)]

    @property
    def data(self):
        return b"".join(struct.pack("HBBI", *line) for line in self.code + [(self.GIVE, 0, 0, self.ALLOW)])


def seccomp_filter(namespaces, architecture=ARCHITECTURE):
    """The filter that makes denied system calls fail; where no namespace hides other processes, those to them too."""
    rules = Filter(architecture)
    for name in DENIED:
        rules.deny(name)
    rules.deny("clone3", rules.NO_SUCH_CALL)
    for name in "clone", "unshare":  # no user namespace
        rules.deny_if(name, 0, NEWUSER, rules.ANY_BIT)
    if not namespaces:
        for name in DENIED_IN_SIGHT:
            rules.deny(name)
        for name in ONLY_SELF:
            rules.only_self(name)
        rules.deny_if("fcntl", 1, F_SETOWN)
        rules.deny_if("fcntl", 1, F_SETOWN_EX)
        rules.deny_if("ioctl", 1, FIOSETOWN)
        rules.deny_if("ioctl", 1, SIOCSPGRP)
        rules.deny_if("socketpair", 1, SOCK_DGRAM, rules.ANY_BIT)  # a bit: raw sockets have it, too
    return rules.data


def give_up_rights(filter):
    """For this process and all that it starts: no more rights by running programs, no denied system calls.
    filter: a buffer that holds a `seccomp_filter`, or None."""
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if filter:
        call("prctl", PR_SET_SECCOMP, 2, struct.pack("HxxxxxxQ", len(filter) // 8, ctypes.addressof(filter)), 0, 0)


def fork_into_namespace():
    """fork, the child as the first process of a new namespace. (unshare and fork would do it, but only once.)"""
    before_fork()
    pid = clone(number_of("clone"), NEWPID | signal.SIGCHLD, 0, 0, 0, 0)
    if pid:
        parent_after_fork()
    else:
        child_after_fork()
    if pid < 0:
        raise OSError("a new process namespace was refused")
    return pid


def pidfd(pid):
    """A descriptor that is readable once the process has ended; -1 if this kernel has none (before Linux 5.3)."""
    return libc.syscall(number_of("pidfd_open"), pid, 0)


def drop_capabilities():
    if capset(CAPABILITIES, NO_CAPABILITIES):
        raise OSError("the capabilities could not be given up")


def limit(name, soft, spare=0):
    """Set a resource limit, no higher than it may be; `spare`: how far the process itself may raise it, None: as far as
    before."""
    which = getattr(resource, f"RLIMIT_{name}")
    most = resource.getrlimit(which)[1]
    limits = [soft if spare is None else soft + spare, *([most] if most != resource.RLIM_INFINITY else [])]
    hard = most if spare is None else min(limits)
    resource.setrlimit(which, (min(soft, *limits), hard))
