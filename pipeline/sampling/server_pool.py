"""Several servers as one: work goes to the one with the least to do, and from one that fails to another."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pipeline.errors import BadInput, TransientError
from pipeline.sampling.server_api import START_IT, ServerApi, ServerFault

FIRST_PAUSE_SECONDS = 0.5
"""Before something is tried again; each further pause is twice as long, up to `LONGEST_PAUSE_SECONDS`."""
LONGEST_PAUSE_SECONDS = 30.0

ResultT = TypeVar("ResultT")


@dataclass(eq=False)
class _Server:
    """A server, the completions that it is at, and what is wrong with it while nothing is sent to it."""

    api: ServerApi
    n_running: int = 0
    trouble: ServerFault | None = None
    recovery: asyncio.Task[None] | None = None


class ServerPool:
    """To be used within one event loop.

    Args:
        apis: the servers.
        admit: returns if a server may be used, and raises `ServerFault` else; asked at first, and after each fault.
        max_completions: how many a server gets at once.
        n_tries: of one piece of work.
        recovery_time_limit_seconds: how long work waits while no server is in order.
    """

    def __init__(
        self,
        apis: Sequence[ServerApi],
        admit: Callable[[ServerApi], Awaitable[None]],
        max_completions: int,
        n_tries: int,
        recovery_time_limit_seconds: float,
    ) -> None:
        self._servers = [_Server(api) for api in apis]
        self._admit = admit
        self._max_completions = max_completions
        self._n_tries = n_tries
        self._recovery_time_limit_seconds = recovery_time_limit_seconds
        self._changed = asyncio.Condition()

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
        failed: _Server | None = None
        for n_tried, pause in enumerate(_pauses(), start=1):
            server = await self._acquire(n_completions, failed)
            try:
                return await work(server.api)
            except ServerFault as fault:
                self._take_out(server, fault)
                if n_tried == self._n_tries:
                    raise fault.as_error() from fault
                failed = server
            finally:
                server.n_running -= n_completions
                await self._notify()
            await asyncio.sleep(pause)
        raise AssertionError("pauses have no end")

    async def check_all(self, check: Callable[[ServerApi], Awaitable[None]]) -> None:
        """Call `check` on every server that is in order; what is wrong with one is a `BadInput`."""
        for server in self._servers:
            if server.trouble is None:
                try:
                    await check(server.api)
                except ServerFault as fault:
                    self._take_out(server, fault)
                    if not fault.is_transient:
                        raise fault.as_error() from fault

    async def _acquire(self, n_completions: int, failed: _Server | None) -> _Server:
        """The server with the least to do that has room for `n_completions`, another than `failed` if there is one."""
        async with self._changed:
            while True:
                in_order = [server for server in self._servers if server.trouble is None]
                others = [server for server in in_order if server is not failed] or in_order
                free = [server for server in others if self._has_room(server, n_completions)]
                if free:
                    chosen = min(free, key=lambda server: server.n_running)
                    chosen.n_running += n_completions
                    return chosen
                await self._wait(is_all_down=not in_order)

    async def _wait(self, is_all_down: bool) -> None:
        """Until something changes; a while at most, where no server is in order."""
        if not is_all_down:
            await self._changed.wait()
            return
        try:
            async with asyncio.timeout(self._recovery_time_limit_seconds):
                await self._changed.wait_for(lambda: any(server.trouble is None for server in self._servers))
        except TimeoutError:
            raise self._nothing_left() from None

    def _has_room(self, server: _Server, n_completions: int) -> bool:
        return server.n_running == 0 or server.n_running + n_completions <= self._max_completions

    def _nothing_left(self) -> BadInput:
        for server in self._servers:
            if server.recovery is not None and server.recovery.done():
                server.recovery.result()  # raises what ended it, which was no fault of the server
        faults = [server.trouble for server in self._servers if server.trouble is not None]
        where, problem = "params.yaml: sampling.server.urls", f"no server is left: {'; '.join(map(str, faults))}"
        if any(fault.is_transient for fault in faults):
            return TransientError(where, problem, f"{START_IT}, and run again: finished shards are kept")
        return BadInput(where, problem, START_IT)

    def _take_out(self, server: _Server, fault: ServerFault) -> None:
        """Send nothing to the server until it is in order again."""
        if server.trouble is None:
            server.trouble = fault
            server.recovery = asyncio.create_task(self._recover(server))

    async def _recover(self, server: _Server) -> None:
        for pause in _pauses():
            server.trouble = await self._try_admit(server)
            await self._notify()
            if server.trouble is None:
                return
            await asyncio.sleep(pause)

    async def _try_admit(self, server: _Server) -> ServerFault | None:
        try:
            await self._admit(server.api)
        except ServerFault as fault:
            return fault
        return None

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _pauses() -> Iterator[float]:
    return (min(FIRST_PAUSE_SECONDS * 2**n, LONGEST_PAUSE_SECONDS) for n in itertools.count())
