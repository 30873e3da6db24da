"""The process of a vLLM engine, and what is said over the socket between it and the stage.

The stage sends `EngineSettings`, and then lists of requests, each with the seed of the shard or None. Back come
("ready",), ("progress", finish reasons, number of tokens), ("done", completions) and ("failed", type of error, message,
traceback). When the stage ends, in whatever way, the socket closes, and the engine ends with all that it started.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Protocol

import psutil

from pipeline.errors import BadInput
from pipeline.sampling import FinishReason, OnProgress, SampledCompletion, SampleRequest

ENGINE = "pipeline.sampling.vllm_engine"
SECONDS_TO_END = 5.0

OFFLINE = {
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",  # the policy is a folder: nothing is to be fetched
}
"""The environment of a vLLM that asks nobody on the network."""

_CAUSE = re.compile(r"\b([A-Z]\w*(?:Error|Exception)): (.+)")
_SAYS_ONLY_THAT_A_WORKER_FAILED = ("WorkerProc initialization failed", "Worker failed with error")

_REMEDIES = (
    (
        r"torchvision|torchaudio|torchcodec",
        "Uninstall torchvision, torchaudio and torchcodec, whose builds for CUDA break beside a CPU build of torch",
    ),
    (
        r"out of memory|OutOfMemory|[Mm]emory on (device|node)|memory for the cache|KV cache|Cannot allocate",
        "Lower sampling.vllm.gpu_memory_utilization or kv_cache_gib where something else holds the memory, raise them "
        "where the cache is too small, or lower sampling.max_batch_completions or max_completion_tokens",
    ),
    (
        r"LoRA|lora|target_modules",
        "Name modules that vLLM can adapt in training.lora.target_modules, or set sampling.engine to transformers",
    ),
    (
        r"[Nn]ot supported|[Uu]nsupported|no vLLM implementation|[Uu]nrecognized|does not support",
        "Use a model that vLLM supports, or set sampling.engine to transformers",
    ),
    (
        r"world.size|[Tt]ensor.parallel|divisible|NUMA",
        "Lower sampling.vllm.tensor_parallel_size",
    ),
)
"""What vLLM says, and what to do about it."""


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is started with: `llm` are arguments of vLLM's `LLM`, `adapter` the folder of a LoRA adapter."""

    llm: dict[str, Any]
    adapter: str | None
    temperature: float
    max_tokens: int
    min_tokens: int
    stop_token_ids: list[int]
    stop: list[str]


class SeededEngine(Protocol):
    """An engine with a policy loaded, in the process that it runs in."""

    def sample(
        self, requests: Sequence[SampleRequest], shard_seed: int | None, on_progress: OnProgress
    ) -> list[list[SampledCompletion]]:
        """A completion per seed of each request, by its seed, or, given `shard_seed`, by that for all together."""
        ...


class EngineProcess:
    """A vLLM engine in a process group of its own; `cores` are those it may use, None for all.

    It begins to load the policy at once; `wait` until it has.
    """

    def __init__(self, settings: EngineSettings, environment: Mapping[str, str], cores: Sequence[int] | None) -> None:
        here, there = socket.socketpair()
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the engine
        with there:
            self.process = subprocess.Popen(
                [sys.executable, "-m", ENGINE, str(there.fileno())],
                env={
                    "VLLM_LOGGING_LEVEL": "WARNING",
                    **os.environ,
                    **OFFLINE,
                    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                    **environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                pass_fds=[there.fileno()],
                start_new_session=True,  # an interrupt from the keyboard is for the stage, which then ends this
            )
        if cores is not None:
            os.sched_setaffinity(self.process.pid, cores)
        self.socket = here
        self.connection = Connection(os.dup(here.fileno()))
        self._send(settings)

    def wait(self) -> None:
        """Return when the policy is loaded; a `BadInput` says why it isn't."""
        self._receive()

    def sample(
        self, requests: Sequence[SampleRequest], shard_seed: int | None, on_progress: OnProgress
    ) -> list[list[SampledCompletion]]:
        """As `SeededEngine.sample`."""
        self._send((list(requests), shard_seed))
        while True:
            kind, *values = self._receive()
            if kind == "done":
                groups: list[list[SampledCompletion]] = values[0]
                return groups
            on_progress(*values)

    def close(self) -> None:
        """End the engine and all its processes; a thread that waits for it is told that it died."""
        processes = _with_children(self.process.pid)
        with suppress(OSError):  # where the engine has ended already
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        deadline = time.monotonic() + SECONDS_TO_END
        while any(map(_is_alive, processes)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in filter(_is_alive, processes):
            process.kill()
        self.process.wait()
        self.log.close()

    def _send(self, value: object) -> None:
        try:
            self.connection.send(value)
        except ConnectionError as error:
            raise self._death() from error

    def _receive(self) -> Any:
        try:
            message = self.connection.recv()
        except (EOFError, ConnectionError) as error:
            raise self._death() from error
        if message[0] != "failed":
            return message
        _, name, text, trace = message
        cause = f"{name}: {text}"
        if any(text.startswith(start) for start in _SAYS_ONLY_THAT_A_WORKER_FAILED):
            cause = self._cause() or cause
        remedy = _remedy(cause)
        if remedy is None:
            raise RuntimeError(f"the vLLM engine failed: {cause}\n{trace}")
        problem = f"vLLM can't sample from the policy ({cause.splitlines()[0]})"
        raise BadInput("params.yaml: sampling.vllm", problem, remedy)

    def _death(self) -> BadInput:
        problem = f"the vLLM engine died ({_ending(self.process.wait())})"
        remedy = "If memory ran out, lower sampling.vllm.kv_cache_gib, gpu_memory_utilization or data_parallel_size"
        if cause := self._cause():
            problem += f"; the last error in its log is {cause}"
            remedy = _remedy(cause) or remedy
        return BadInput("params.yaml: sampling.vllm", problem, f"{remedy.rstrip('.')}; shards of a rollout are kept")

    def _cause(self) -> str | None:
        """The last error in the log that says more than that there was one."""
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").splitlines()
        found = [match[0] for line in lines if (match := _CAUSE.search(line))]
        told = [cause for cause in found if not any(start in cause for start in _SAYS_ONLY_THAT_A_WORKER_FAILED)]
        return told[-1] if told else None


def _remedy(cause: str) -> str | None:
    """What to do about what vLLM says, where that is known."""
    return next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, cause)), None)


def _with_children(pid: int) -> list[psutil.Process]:
    """The process and all that it started, which hold GPU memory until they end."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def serve(connection: Connection, start: Callable[[EngineSettings], SeededEngine]) -> None:
    """In the engine's process: `start` it and do what comes over `connection`, until that closes."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # `_receive` sends it to the group, and ends this process itself
    orders: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, orders.put), daemon=True).start()

    def report(reasons: Sequence[FinishReason], n_tokens: int) -> None:
        connection.send(("progress", reasons, n_tokens))

    try:
        engine = start(orders.get())
        connection.send(("ready",))
        while True:
            requests, shard_seed = orders.get()
            connection.send(("done", engine.sample(requests, shard_seed, report)))
    except Exception as error:  # of any kind: the stage has the words for it
        connection.send(("failed", type(error).__name__, str(error), traceback.format_exc()))
        threading.Event().wait()  # until the stage, which reads it, closes the socket


def _receive(connection: Connection, put: Callable[[Any], None]) -> None:
    """Hand on what arrives, and at its end, which comes when the stage is killed too, end the whole group.

    vLLM's workers and Python's resource tracker are in the group. The tracker ignores the signal: it tidies up what
    the others had in shared memory, and ends with them.
    """
    while True:
        try:
            put(connection.recv())
        except (EOFError, OSError):
            os.killpg(0, signal.SIGTERM)
            os._exit(0)
