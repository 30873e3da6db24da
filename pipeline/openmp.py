"""How the threads of OpenMP wait, to be said before torch is imported."""

from __future__ import annotations

import os


def let_threads_sleep() -> None:
    """Have a thread without work spin for some microseconds, then sleep, unless the environment says otherwise.

    A spinning thread keeps a core from the process that it waits for: on a busy machine torch then runs ten times
    slower. A sleeping one takes long to wake, and a decode step wakes it a thousand times.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
