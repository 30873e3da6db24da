"""Calls in worker processes: one that hangs, crashes or runs out of memory costs its own result and no other.

Workers come from a fork server, a process of one thread that has imported what they need, so that a killed one is
replaced in milliseconds. A function is named by text, `module:name`, so that only workers import it.
"""

from __future__ import annotations

import importlib
import json
import resource
import signal
import sys
import time
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pebble import ProcessExpired, ProcessPool

WORKER_MEMORY_BYTES = 4 << 30
"""Address space of a worker; what asks for more gets a MemoryError."""

PATIENCE = 4
"""How many times its limit a call may take by the clock."""

_CLEAN_EXIT = 256
"""Stands for an exit code of 0, which no worker should have in the midst of a call, and which pebble overlooks."""

_running: list[ProcessPool] = []
"""The pools that share the one fork server of this process."""

_MAX_CHUNK = 64
_CHUNK_SECONDS = 0.1
"""A chunk of calls ends at `_MAX_CHUNK` calls, or with the call that it is in after this time."""


@dataclass(frozen=True)
class Call:
    """A call of `function`, given as `module:name`, with arguments that can be pickled.

    The limit is one of computing time, so that a busy machine makes no right answer a late one; what waits, or is kept
    waiting, has `PATIENCE` times as long.
    """

    function: str
    args: tuple[Any, ...]
    time_limit_seconds: float


@dataclass(frozen=True)
class Outcome:
    """The value that a call returned, or how it failed and the reason in words."""

    value: Any = None
    failure: Literal["timeout", "crash", "exception"] | None = None
    reason: str = ""


@dataclass(frozen=True)
class Workers:
    """A running pool of processes, and the folder where they log what calls came to."""

    pool: ProcessPool
    n_workers: int
    folder: Path

    def run(self, calls: Sequence[Call], on_done: Callable[[int], None]) -> list[Outcome]:
        """The outcome of each call, in the order of `calls`; `on_done` gets the index of each as it ends."""
        outcomes: list[Outcome] = [Outcome()] * len(calls)
        waiting = deque(range(len(calls)))
        running: dict[Future[None], list[int]] = {}
        ended: SimpleQueue[Future[None]] = SimpleQueue()
        while waiting or running:
            while waiting and len(running) < 2 * self.n_workers:
                size = min(_MAX_CHUNK, 1 + len(waiting) // (4 * self.n_workers))
                chunk = [waiting.popleft() for _ in range(min(size, len(waiting)))]
                future = self._start([calls[index] for index in chunk], self._log(chunk))
                running[future] = chunk
                future.add_done_callback(ended.put)
            future = ended.get()
            chunk = running.pop(future)
            results = _results([calls[index] for index in chunk], self._log(chunk), future)
            for index, outcome in zip(chunk, results, strict=False):
                outcomes[index] = outcome
                on_done(index)
            waiting.extendleft(reversed(chunk[len(results) :]))
        return outcomes

    def _start(self, chunk: list[Call], log: Path) -> Future[None]:
        # Each call has alarms of its own. This limit is for code that turns them off.
        limit = _CHUNK_SECONDS + PATIENCE * max(call.time_limit_seconds for call in chunk) + 1
        return self.pool.schedule(_run_chunk, (chunk, log), timeout=limit)

    def _log(self, chunk: list[int]) -> Path:
        return self.folder / str(chunk[0])


@contextmanager
def start_workers(n_workers: int, modules: Sequence[str], warm_up: Sequence[Call]) -> Iterator[Workers]:
    """Worker processes of which nothing survives the block, or the death of this process.

    Each worker imports `modules` and runs the calls of `warm_up` first, so that they are in no other call's time.
    """
    context = _WorkerContext()
    modules = [*modules, *{call.function.partition(":")[0]: None for call in warm_up}]
    context.set_forkserver_preload([__name__, *modules])
    pool = ProcessPool(n_workers, context=context, initializer=_start_worker, initargs=(modules, list(warm_up)))
    _running.append(pool)
    with TemporaryDirectory(prefix="rollbook-") as folder:
        try:
            yield Workers(pool, n_workers, Path(folder))
        finally:
            pool.stop()  # type: ignore[no-untyped-call]
            pool.join()
            _running.remove(pool)
            if not _running:
                # The next workers want other modules, and a fork server imports only what it is started with.
                forkserver._forkserver._stop()  # type: ignore[attr-defined]


class WorkersOnDemand:
    """Workers that start with the first calls that need them, since they take a while, and end with the block.

    They start anew where further calls want something imported that these have not: else it would be in their time.
    """

    def __init__(self, n_workers: int, modules: Sequence[str]) -> None:
        self._n_workers = n_workers
        self._modules = modules
        self._warm_up: dict[Call, None] = {}
        self._running = ExitStack()
        self._workers: Workers | None = None

    def __enter__(self) -> WorkersOnDemand:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def start(self, warm_up: Sequence[Call] = ()) -> Workers:
        """Workers that have imported the modules and run the calls of `warm_up`."""
        if self._workers is None or not self._warm_up.keys() >= set(warm_up):
            self._running.close()
            self._warm_up |= dict.fromkeys(warm_up)
            workers = start_workers(self._n_workers, self._modules, list(self._warm_up))
            self._workers = self._running.enter_context(workers)
        return self._workers


def _results(chunk: Sequence[Call], log: Path, future: Future[None]) -> list[Outcome]:
    """What `chunk` came to, as far as it got: where its worker died, the last outcome is the call that it died of."""
    lines = log.read_text(encoding="ascii").splitlines(keepends=True) if log.exists() else []
    log.unlink(missing_ok=True)
    results = [Outcome(*json.loads(line)) for line in lines if line.endswith("\n")]
    try:
        future.result()
    except (TimeoutError, ProcessExpired) as error:
        if len(results) < len(chunk):
            results.append(_death(error, chunk[len(results)]))
    return results


def _death(error: TimeoutError | ProcessExpired, call: Call) -> Outcome:
    if isinstance(error, ProcessExpired) and error.exitcode not in (-signal.SIGPROF, -signal.SIGALRM):
        code = 0 if error.exitcode == _CLEAN_EXIT else error.exitcode
        return Outcome(failure="crash", reason=f"crash: its worker process ended with exit code {code}")
    return Outcome(failure="timeout", reason=f"timeout: it took more than {call.time_limit_seconds:g} s")


def _run_chunk(calls: Sequence[Call], log: Path) -> None:
    """Runs in a worker: as many of `calls` as fit in `_CHUNK_SECONDS`, one line of `log` for each."""
    started = time.monotonic()
    with log.open("ab", buffering=0) as lines:  # unbuffered, so that a worker that is killed leaves its lines
        for call in calls:
            lines.write(_run_call(call).encode("ascii") + b"\n")
            if time.monotonic() - started > _CHUNK_SECONDS:
                break


def _run_call(call: Call) -> str:
    """The fields of an `Outcome` as JSON: only plain values leave a worker, since others may not survive the trip."""
    # The default action of these signals kills, also in the midst of a computation in C, and with the parent gone.
    signal.setitimer(signal.ITIMER_PROF, call.time_limit_seconds)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE * call.time_limit_seconds)
    try:
        return json.dumps([_run(call)])
    except BaseException as error:  # whatever it is, a SystemExit too, it is the outcome of this one call
        return json.dumps([None, "exception", describe(error)])
    finally:
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)


def describe(error: BaseException) -> str:
    """Type and message of an error of somebody else's code, in characters that a table can hold.

    >>> describe(ValueError("no\\ud800 such thing"))
    'ValueError: no? such thing'
    """
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # its own __str__ is broken too
        text = type(error).__name__
    return text[:500].encode("utf-8", "replace").decode("utf-8")


def _run(call: Call) -> Any:
    module, _, name = call.function.partition(":")
    return getattr(importlib.import_module(module), name)(*call.args)


def _start_worker(modules: Sequence[str], warm_up: Sequence[Call]) -> None:
    # Pebble's own handler waits for Python code to run, which a long computation in C never does.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = WORKER_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, WORKER_MEMORY_BYTES)
    with suppress(ValueError, OSError):  # macOS doesn't limit address space
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    # A fork server that was started for others hasn't imported these. What fails here fails again in a call.
    for module in modules:
        with suppress(Exception):
            importlib.import_module(module)
    for call in warm_up:
        with suppress(Exception):
            _run(call)


class _WorkerProcess(ForkServerProcess):
    """A process that doesn't import the parent's main module again, as a stage takes half a second to import."""

    @property
    def exitcode(self) -> int | None:
        code = super().exitcode
        return _CLEAN_EXIT if code == 0 else code

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 - the name that multiprocessing looks for
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            return ForkServerProcess._Popen(process_obj)
        finally:
            sys.modules["__main__"] = main


class _WorkerContext(ForkServerContext):
    Process = _WorkerProcess
