"""The last doors that a process inside a sandbox closes on itself, before it runs code that nobody has read."""

from __future__ import annotations

import ctypes
import os
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SANDBOX_UID = 1
"""Where the sandbox was started by root, the user that it becomes; outside it is the user nobody."""

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_BYTES_PER_INSTRUCTION = 8


class _Program(ctypes.Structure):
    """`struct sock_fprog` of linux/filter.h."""

    _fields_ = (("n_instructions", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def drop_root() -> None:
    """Become an ordinary user for good: no limit of processes holds for root."""
    os.setgroups([])
    os.setresgid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID)
    os.setresuid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID)


def set_limits(limits: dict[str, Any]) -> None:
    """Set each of `limits`, named as in the module resource, for good."""
    for name, value in limits.items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (limit, limit))


def forbid_system_calls(program: bytes) -> None:
    """Have the kernel hold this process to the seccomp filter `program` for good; an empty one holds nothing."""
    if not program:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    filter_program = _Program(len(program) // _BYTES_PER_INSTRUCTION, program)
    none, one = ctypes.c_ulong(0), ctypes.c_ulong(1)
    mode = ctypes.c_ulong(_SECCOMP_MODE_FILTER)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, one, none), (_PR_SET_SECCOMP, mode, ctypes.byref(filter_program))):
        if libc.prctl(*arguments, none, none):
            raise OSError(ctypes.get_errno(), "prctl")
