"""The system calls that a sandbox allows, as programs for the kernel's seccomp filter, made by libseccomp.

What is not listed is refused: mounts, namespaces, sockets, other processes' memory, shared memory, io_uring, keys, bpf.
"""

from __future__ import annotations

import errno
import socket
from functools import lru_cache
from tempfile import TemporaryFile
from typing import Any

from pipeline.errors import BadInput
from pipeline.params import PARAMS_FILE

_FILES = """
read write readv writev pread64 pwrite64 open openat close close_range stat fstat lstat newfstatat statx access
faccessat faccessat2 lseek getdents64 readlink readlinkat getcwd chdir fchdir mkdir mkdirat rmdir unlink unlinkat rename
renameat renameat2 link linkat symlink symlinkat chmod fchmod fchmodat utimensat truncate ftruncate umask fsync
fdatasync flock fcntl dup dup2 dup3 pipe pipe2 statfs fstatfs sendfile copy_file_range fadvise64
"""
_WAITING = """
poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd2 sendto recvfrom
nanosleep clock_nanosleep futex sched_yield restart_syscall
"""
_MEMORY = "mmap mprotect munmap mremap madvise brk membarrier"
_SIGNALS = """
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack kill tgkill alarm
setitimer getitimer pause
"""
_PROCESS = """
exit exit_group getpid getppid gettid getuid geteuid getgid getegid getresuid getresgid getgroups getpgrp getpgid getsid
getrlimit setrlimit prlimit64 getrusage times time gettimeofday clock_gettime clock_getres sysinfo uname getrandom
getcpu sched_getaffinity arch_prctl set_tid_address set_robust_list get_robust_list rseq wait4 waitid
"""
_STARTING = "clone fork vfork execve prctl seccomp setgroups setresuid setresgid"
"""For bubblewrap and for what we run before the solution; the solution itself may start threads alone."""

_IOCTLS = {"TCGETS": 0x5401, "FIONREAD": 0x541B, "FIOCLEX": 0x5451, "FIONCLEX": 0x5450, "FIONBIO": 0x5421}
_CLONE_THREAD = 0x00010000


@lru_cache(maxsize=2)
def filter_program(may_start_processes: bool) -> bytes:
    """The program of the filter, for this machine's architecture.

    Raises:
        BadInput: libseccomp is not installed.
    """
    try:
        import pyseccomp as seccomp  # here, since importing it needs libseccomp
    except (ImportError, RuntimeError, OSError) as error:
        remedy = "Install it (Debian, Ubuntu: `apt-get install libseccomp2`)"
        raise BadInput(
            f"{PARAMS_FILE}: score.code.isolation", f"libseccomp can't be loaded: {error}", remedy
        ) from error
    rules = seccomp.SyscallFilter(seccomp.ERRNO(errno.EPERM))
    names = f"{_FILES} {_WAITING} {_MEMORY} {_SIGNALS} {_PROCESS} {_STARTING if may_start_processes else ''}".split()
    for name in filter(_is_known, names):
        rules.add_rule(seccomp.ALLOW, name)
    for request in _IOCTLS.values():
        rules.add_rule(seccomp.ALLOW, "ioctl", seccomp.Arg(1, seccomp.EQ, request))
    rules.add_rule(seccomp.ALLOW, "socketpair", seccomp.Arg(0, seccomp.EQ, socket.AF_UNIX))  # asyncio needs it
    if not may_start_processes:
        rules.add_rule(seccomp.ALLOW, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, _CLONE_THREAD, _CLONE_THREAD))
    # The C library then falls back to clone, whose flags a filter can see.
    rules.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    return _exported(rules)


def _is_known(name: str) -> bool:
    """Whether this architecture has the call: arm64, say, has openat and no open."""
    import pyseccomp as seccomp

    return bool(seccomp.resolve_syscall(seccomp.Arch.NATIVE, name) >= 0)


def _exported(rules: Any) -> bytes:
    with TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()
