"""The two private descriptors of a sandbox, and what is said on them before anything else."""

from __future__ import annotations

import os

from . import frames
from .confinement import drop_root, forbid_system_calls, set_limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HELLO = {"hello": "rollbook"}
_MAX_DESCRIPTORS = 256


class Channel:
    """Requests from the scorer and results to it, on descriptors that stand for nothing else."""

    def __init__(self, results: int) -> None:
        """Say hello on the descriptor `results`, take requests off standard input, and get the task."""
        os.closerange(3, results)
        os.closerange(results + 1, _MAX_DESCRIPTORS)
        self._results = results
        self._requests = os.dup(0)
        self._max_frame_bytes = frames.NO_LIMIT
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        os.close(nowhere)
        self.send(HELLO)
        self.task = self.receive()
        if self.task["is_root"]:
            drop_root()
        self._max_frame_bytes = self.task["max_frame_bytes"]

    def receive(self) -> dict[str, Any]:
        """The next request."""
        return frames.receive(self._requests)

    def send(self, message: dict[str, Any]) -> None:
        """Send a result, or that it is too large."""
        frames.send(self._results, message, self._max_frame_bytes)

    def close(self) -> None:
        """For a child that has no business here."""
        os.close(self._requests)
        os.close(self._results)

    def confine(self) -> None:
        """Put on the task's limits and its filter of system calls, for good."""
        set_limits(self.task["limits"])
        forbid_system_calls(bytes.fromhex(self.task["filter"]))
