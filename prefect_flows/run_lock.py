"""The lock of a run, held from before Prefect's server starts until after it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pipeline.versioning.guards import trainer_lock
from pipeline.versioning.repository import Repository

_HELD: ContextVar[frozenset[tuple[Repository, str]]] = ContextVar("_HELD", default=frozenset())


@contextmanager
def run_lock(repository: Repository, run: str) -> Iterator[None]:
    """`trainer_lock`, which whoever has it may take again: the flow does what the command that calls it has done.

    Raises:
        BadInput: another process holds it; the message names the process.
    """
    held = _HELD.get()
    if (repository, run) in held:
        yield
        return
    with trainer_lock(repository, run):
        _HELD.set(held | {(repository, run)})
        try:
            yield
        finally:
            _HELD.set(held)
