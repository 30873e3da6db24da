"""One running `vllm serve`, over HTTP: calls with a time limit, and what goes wrong with them as one kind of error."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from pipeline.errors import BadInput, TransientError, first_line

SECONDS_FOR_A_LOOK = 10.0
"""For what a healthy server answers at once."""

START_IT = "Start it with `rollbook serve`, from the params and policy that are here"

_MAY_PASS = frozenset({408, 425, 429, *range(500, 600)})


class ServerFault(Exception):
    """What a server failed to do, and another one, or the same one later, may do: it is to be tried again.

    `is_transient` says that it may be in order by then; `status` is that of an HTTP error.
    """

    def __init__(self, url: str, problem: str, is_transient: bool, status: int | None = None) -> None:
        super().__init__(f"{url}: {problem}")
        self.url = url
        self.problem = problem
        self.is_transient = is_transient
        self.status = status

    def as_error(self) -> BadInput:
        """The error that a person gets when nothing is left to try."""
        if self.is_transient:
            return TransientError(self.url, self.problem, f"{START_IT}, and run again: shards of a rollout are kept")
        return BadInput(self.url, self.problem, START_IT)


class ServerApi:
    """The server at `url`. A call that takes longer than `time_limit_seconds` is broken off, and so is its work."""

    def __init__(self, url: str, http: httpx.AsyncClient, time_limit_seconds: float) -> None:
        self.url = url
        self._http = http
        self._time_limit_seconds = time_limit_seconds

    async def check_health(self) -> None:
        """Return if the server and its engine are alive."""
        await self._call("GET", "/health", seconds=SECONDS_FOR_A_LOOK)

    async def get(self, path: str) -> Any:
        """The JSON of what is told at once."""
        reply = await self._call("GET", path, seconds=SECONDS_FOR_A_LOOK)
        try:
            return reply.json()
        except ValueError as error:
            raise ServerFault(self.url, f"its answer to {path} is no JSON: {_shown(reply)}", False) from error

    async def post(self, path: str, body: Any = None) -> bytes:
        """What it answers to work that may take long."""
        return (await self._call("POST", path, body, self._time_limit_seconds)).content

    async def _call(self, method: str, path: str, body: Any = None, seconds: float = 0.0) -> httpx.Response:
        try:
            async with asyncio.timeout(min(seconds, self._time_limit_seconds)):
                reply = await self._http.request(method, f"{self.url}{path}", json=body)
        except TimeoutError as error:
            problem = f"it gave no answer to {path} within {min(seconds, self._time_limit_seconds):g} seconds"
            raise ServerFault(self.url, problem, True) from error
        except httpx.RequestError as error:
            problem = f"there is no connection ({type(error).__name__}: {first_line(error)})"
            raise ServerFault(self.url, problem, True) from error
        if reply.status_code != httpx.codes.OK:
            problem = f"it answers {reply.status_code} to {path}: {_shown(reply)}"
            raise ServerFault(self.url, problem, reply.status_code in _MAY_PASS, reply.status_code)
        return reply


def _shown(reply: httpx.Response) -> str:
    return repr(reply.text[:300])
