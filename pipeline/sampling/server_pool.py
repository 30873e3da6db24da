"""Several servers as one: work goes to the one with the least to do, and from one that fails to another."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pipeline.errors import BadInput, TransientError
from pipeline.sampling.server_api import START_IT, ServerApi, ServerFault

FIRST_PAUSE_SECONDS = 0.5
"""Before a server that failed is tried again; each further pause is twice as long, up to `LONGEST_PAUSE_SECONDS`."""
LONGEST_PAUSE_SECONDS = 30.0

Admit = Callable[[ServerApi], Awaitable[None]]
"""Returns if a server may be used, and raises `ServerFault` else."""

ResultT = TypeVar("ResultT")


@dataclass(eq=False)
class _Server:
    """A server, the completions that it is at, and what is wrong with it while nothing is sent to it.

    `n_faults` counts those since it last did some work.
    """

    api: ServerApi
    n_running: int = 0
    trouble: ServerFault | None = None
    n_faults: int = 0


@dataclass(eq=False)
class _Job:
    """Work that makes `n_completions`, and the servers that failed at it, one after the other."""

    n_completions: int
    work: Callable[[ServerApi], Awaitable[Any]]
    result: asyncio.Future[Any]
    failed_on: list[_Server] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class ServerPool:
    """To be used within one event loop.

    Args:
        apis: the servers.
        admit: asked for every server at first, and after each fault until it returns.
        max_completions: how many a server gets at once.
        n_tries: of one piece of work.
        recovery_time_limit_seconds: how long work waits while no server is in order.
    """

    def __init__(
        self,
        apis: Sequence[ServerApi],
        admit: Admit,
        max_completions: int,
        n_tries: int,
        recovery_time_limit_seconds: float,
    ) -> None:
        self._servers = [_Server(api) for api in apis]
        self._admit = admit
        self._max_completions = max_completions
        self._n_tries = n_tries
        self._recovery_time_limit_seconds = recovery_time_limit_seconds
        self._waiting: deque[_Job] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._deadline: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Try all servers. One that is down may come later; one that is wrong is a `BadInput`."""
        faults = await asyncio.gather(*(self._try_admit(server) for server in self._servers))
        for fault in faults:
            if fault is not None and not fault.is_transient:
                raise fault.as_error()
        for server, fault in zip(self._servers, faults, strict=True):
            if fault is not None:
                self._take_out(server, fault)

    async def run(self, n_completions: int, work: Callable[[ServerApi], Awaitable[ResultT]]) -> ResultT:
        """What `work`, which makes `n_completions`, gives on some server; on another one after a `ServerFault`."""
        job = _Job(n_completions, work, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        self._hand_out()
        try:
            result: ResultT = await job.result
            return result
        finally:
            if job in self._waiting:
                self._waiting.remove(job)
            if job.task is not None:
                job.task.cancel()  # where the waiting was broken off

    async def check_all(self, check: Admit) -> None:
        """Call `check` on every server that is in order; what is wrong with one is a `BadInput`."""
        for server in self._servers:
            if server.trouble is None:
                try:
                    await check(server.api)
                except ServerFault as fault:
                    self._take_out(server, fault)
                    if not fault.is_transient:
                        raise fault.as_error() from fault

    def close(self) -> None:
        """Hand out nothing more of what waits."""
        self._waiting.clear()
        self._watch_deadline()

    def _hand_out(self) -> None:
        """Start jobs that wait, in their order, while there is a server for one."""
        while (found := self._find_next()) is not None:
            job, server = found
            self._waiting.remove(job)
            server.n_running += job.n_completions
            job.task = self._start(self._work(job, server))
        self._watch_deadline()

    def _find_next(self) -> tuple[_Job, _Server] | None:
        """The first job that some server has room for, and the one with the least to do of these.

        A server that failed at a job gets it again only where no other one is in order.
        """
        in_order = [server for server in self._servers if server.trouble is None]
        if not self._waiting or not any(self._has_room(server, self._waiting[0]) for server in in_order):
            return None  # at once: the others that wait are as large as the first
        for job in self._waiting:
            others = [server for server in in_order if server not in job.failed_on] or in_order
            free = [server for server in others if self._has_room(server, job)]
            if free:
                return job, min(free, key=lambda server: server.n_running)
        return None

    def _has_room(self, server: _Server, job: _Job) -> bool:
        return server.n_running == 0 or server.n_running + job.n_completions <= self._max_completions

    async def _work(self, job: _Job, server: _Server) -> None:
        try:
            result = await job.work(server.api)
            server.n_faults = 0
            if not job.result.done():
                job.result.set_result(result)
        except ServerFault as fault:
            self._take_out(server, fault)
            job.failed_on.append(server)
            if len(job.failed_on) == self._n_tries:
                _fail(job, fault.as_error())
            else:
                self._waiting.appendleft(job)
        except Exception as error:  # any: it is for the one who waits for the result
            _fail(job, error)
        finally:
            server.n_running -= job.n_completions
            self._hand_out()

    def _take_out(self, server: _Server, fault: ServerFault) -> None:
        """Send nothing to the server until it is in order again."""
        if server.trouble is None:
            server.trouble = fault
            self._start(self._recover(server))

    async def _recover(self, server: _Server) -> None:
        while server.trouble is not None:
            await asyncio.sleep(min(FIRST_PAUSE_SECONDS * 2**server.n_faults, LONGEST_PAUSE_SECONDS))
            server.n_faults += 1
            server.trouble = await self._try_admit(server)
        self._hand_out()

    async def _try_admit(self, server: _Server) -> ServerFault | None:
        try:
            await self._admit(server.api)
        except ServerFault as fault:
            return fault
        return None

    def _watch_deadline(self) -> None:
        """Let the time run while jobs wait and no server is in order."""
        is_stuck = bool(self._waiting) and all(server.trouble is not None for server in self._servers)
        if is_stuck and self._deadline is None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self._recovery_time_limit_seconds, self._give_up)
        elif not is_stuck and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        faults = [server.trouble for server in self._servers if server.trouble is not None]
        where, problem = "params.yaml: sampling.server.urls", f"no server is left: {'; '.join(map(str, faults))}"
        if any(fault.is_transient for fault in faults):
            self._fail_waiting(
                TransientError(where, problem, f"{START_IT}, and run again: shards of a rollout are kept")
            )
        else:
            self._fail_waiting(BadInput(where, problem, START_IT))

    def _fail_waiting(self, error: BaseException) -> None:
        while self._waiting:
            _fail(self._waiting.popleft(), error)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # an event loop itself keeps no hold of a task
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._fail_waiting(error)


def _fail(job: _Job, error: BaseException) -> None:
    if not job.result.done():  # as it is where nobody waits for it any more
        job.result.set_exception(error)
