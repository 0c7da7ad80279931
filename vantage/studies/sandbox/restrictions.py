"""What the code in a sandbox may not do, held by the kernel where it can be and by Python elsewhere.

Linux, without root: seccomp refuses the calls that make processes, threads and sockets, signal others or change what
they own; Landlock keeps reading to Python's own folders and writing to the working folder; resource limits bound time,
memory and file sizes. Elsewhere an audit hook of Python refuses the same through Python's own functions.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from collections.abc import Callable

FILE_BYTES = 16 * 2**20
FILES = 64

# The calls that are refused, by their numbers on x86-64 and on 64-bit ARM (None: it has no such call).
REFUSED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198), "socketpair": (53, 199), "io_uring_setup": (425, 425),
    "fork": (57, None), "vfork": (58, None), "clone": (56, 220), "clone3": (435, 435),
    "execve": (59, 221), "execveat": (322, 281),
    "kill": (62, 129), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "setrlimit": (160, 164), "setsid": (112, 157), "setpgid": (109, 154),
    "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143),
    "setresuid": (117, 147), "setresgid": (119, 149), "setgroups": (116, 159), "capset": (126, 91),
    "mount": (165, 40), "umount2": (166, 39), "chroot": (161, 51), "pivot_root": (155, 41),
    "unshare": (272, 97), "setns": (308, 268), "sethostname": (170, 161),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "init_module": (175, 105), "finit_module": (313, 273), "kexec_load": (246, 104), "reboot": (169, 142),
    "swapon": (167, 224), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "memfd_create": (319, 279),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
}  # fmt: skip
TGKILL, PRLIMIT = (234, 131), (302, 261)
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # the column above, the kernel's name for it

# Parts of a seccomp program: load a word of the call's data, compare, return.
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
NUMBER, MACHINE, ARGUMENT = 0, 4, 16  # where they stand in that data; arguments are eight bytes each


def install(folder: str, seconds: float, memory: int, without: tuple[str, ...] = ()) -> list[str]:
    """Put everything in force that can be, for good. Returns the names of what is. ``without`` is for tests."""
    layers: dict[str, Callable[[], bool]] = {
        "limits": lambda: _limits(seconds, memory),
        "landlock": lambda: _landlock(folder),
        "network namespace": lambda: _own_network(),
        "seccomp": _seccomp,
        "audit hook": lambda: _hook(folder),
    }
    return [name for name, put in layers.items() if name not in without and put()]


def _limits(seconds: float, memory: int) -> bool:
    used = 0
    if sys.platform == "linux":  # the address space that torch itself has mapped is not the student's
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    whole = int(seconds) + 2
    wanted = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, whole),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, FILES),
        (resource.RLIMIT_NPROC, 0),  # no new process and no new thread; root is not bound by it, seccomp binds root
    ]
    if sys.platform == "linux":
        wanted.append((resource.RLIMIT_AS, used + memory))
    for what, most in wanted:
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
    return True


# ---- Landlock: which files


def _landlock(folder: str) -> bool:
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(444, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    rights = 13 + (version >= 2) + (version >= 3)  # execute, write, read, … ; moving since 2, truncating since 3
    every, read = (1 << rights) - 1, 0b1100
    attributes = struct.pack("Q", every)
    ruleset = libc.syscall(444, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return False
    for path, allowed in [*((p, read | 1) for p in _readable()), (folder, every & ~1), ("/dev/null", read | 2)]:
        _allow(libc, ruleset, path, allowed & every)
    libc.prctl(38, 1, 0, 0, 0)  # no new privileges, ever: what both Landlock and seccomp ask for
    restricted = libc.syscall(446, ruleset, 0) == 0
    os.close(ruleset)
    return restricted


def _readable() -> list[str]:
    own = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path}
    system = ["/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime"]
    devices = ["/dev/zero", "/dev/urandom", "/dev/random"]
    machine = ["/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/sys/devices/system"]
    return [p for p in (*sorted(own), *system, *devices, *machine) if p and p != "/" and os.path.exists(p)]


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, allowed: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not os.path.isdir(path):
        allowed &= 0b111 | 1 << 14  # a file can be executed, written, read and truncated
    libc.syscall(445, ruleset, 1, struct.pack("=Qi", allowed, fd), 0)
    os.close(fd)


# ---- the network, where seccomp is not to be had


def _own_network() -> bool:
    """A network of its own, with nothing in it. Many systems do not let a plain user have one."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    new_user, new_network = 0x10000000, 0x40000000
    return libc.unshare(new_user | new_network) == 0


# ---- seccomp: which calls


def program(machine: str, process: int) -> bytes:
    """The filter, as the kernel reads it."""
    column, name = MACHINES[machine]
    steps = [(LOAD, 0, 0, MACHINE), (EQUAL, 1, 0, name), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    if machine == "x86_64":  # the same calls under other numbers
        steps += [(AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, REFUSE)]
    for numbers in REFUSED.values():
        number = numbers[column]
        if number is not None:
            steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE)]
    # A process may signal itself (abort does), and read its limits but not set them.
    steps += [(EQUAL, 0, 4, TGKILL[column]), (LOAD, 0, 0, ARGUMENT), (EQUAL, 1, 0, process)]
    steps += [(RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
    steps += [(EQUAL, 0, 5, PRLIMIT[column]), (LOAD, 0, 0, ARGUMENT + 16), (EQUAL, 0, 2, 0)]
    steps += [(LOAD, 0, 0, ARGUMENT + 20), (EQUAL, 1, 0, 0), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _seccomp() -> bool:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in MACHINES or sys.byteorder != "little":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(program(machine, os.getpid()))
    size = (len(code) - 1) // 8
    program_struct = ctypes.create_string_buffer(struct.pack("HxxxxxxP", size, ctypes.addressof(code)))
    libc.prctl(38, 1, 0, 0, 0)
    return libc.prctl(22, 2, program_struct, 0, 0) == 0


# ---- Python's own functions, everywhere

PROCESSES = ("os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "subprocess")
SIGNALS = ("os.kill", "os.killpg", "signal.pthread_kill")
FILE_EVENTS = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.link", "os.symlink",
               "os.truncate", "os.utime", "os.setxattr", "os.removexattr")  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class NotPermitted(PermissionError):
    """Something that an answer is not let do."""


def _hook(folder: str) -> bool:
    home = os.path.realpath(folder)

    def inside(path: object) -> bool:
        if isinstance(path, int):
            return True
        text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        whole = os.path.realpath(text)
        return whole == home or whole.startswith(home + os.sep) or whole == os.devnull

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event.startswith("socket."):
            raise NotPermitted("there is no network while an answer is graded")
        if event.startswith(PROCESSES):
            raise NotPermitted("an answer may not start processes")
        if event in SIGNALS:
            raise NotPermitted("an answer may not send signals")
        if event == "open" and isinstance(args[2], int) and args[2] & WRITING and not inside(args[0]):
            raise NotPermitted(f"an answer may write in its working folder only, not {args[0]!r}")
        if event in FILE_EVENTS and not inside(args[0]):
            raise NotPermitted(f"an answer may change files in its working folder only, not {args[0]!r}")

    sys.addaudithook(hook)
    return True
