"""How long processes have computed, by the kernel's count: on a busy machine the clock runs on without them."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_USER_TICKS, _END = 11, 15
"""Of `/proc/PID/stat` behind the name: user, system, and both of the children that have ended."""


def computing_seconds(pid: int) -> float | None:
    """Processor time of a process and all that it started, in seconds; None where the kernel does not say, or it ended.

    >>> computing_seconds(os.getpid()) > 0
    True
    """
    try:
        return _ticks(pid) / _TICKS_PER_SECOND
    except OSError:
        return None


def _ticks(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    own = sum(map(int, stat.rpartition(")")[2].split()[_USER_TICKS:_END]))
    return own + sum(_ticks(int(child)) for child in children)
