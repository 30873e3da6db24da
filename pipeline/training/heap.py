"""The heap of the C library, which keeps the memory of tensors that are gone."""

from __future__ import annotations

import ctypes
import sys


def trim_heap() -> None:
    """Give the system the pages back that hold nothing any more; without glibc, nothing happens.

    Forward and backward passes leave holes in the heap that the other kind of pass fits into badly, so that the process
    grows by hundreds of megabytes. What is given back costs a page fault when it is used again.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
