"""Sampling in shards that are kept as they are finished, so that what was sampled once is not sampled again.

A shard is kept under a key made of everything that determines it, the code of the sampling engine included. A stage
that was killed goes on from the shards that it finished, to the same result, since the cut does not depend on what
is there already; and an evaluation whose reward alone changed is only scored again. A file that was cut off or damaged
is as good as none: each holds a digest of itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from pipeline.fingerprint import digest_files
from pipeline.sampling import OnProgress, SampledCompletion, Sampler, SampleRequest
from pipeline.seeds import stable_hash
from pipeline.table_io import write_text

CODE = (Path(__file__).parent, Path(__file__).parent.parent / "policy.py")
"""Files and folders whose code determines what is sampled."""


@dataclass(frozen=True)
class Sampled:
    """Per request its completions; `seconds` is the time that sampling them took, whenever that was.

    Of shards that are sampled side by side, each counts its share of the time.
    """

    completions: list[list[SampledCompletion]]
    seconds: float
    n_kept: int


@dataclass(frozen=True)
class _Shard:
    """Requests that are sampled together: which of all they are, and where their completions are kept."""

    indices: list[int]
    requests: list[SampleRequest]
    file: Path


SECONDS_BETWEEN_LOOKS = 0.5

ShardT = TypeVar("ShardT")
ResultT = TypeVar("ResultT")

_Made = tuple[list[list[SampledCompletion]], float]
"""The completions of each request of a shard, and the seconds that they took."""


def sample_in_shards(
    requests: Sequence[SampleRequest],
    max_completions: int,
    load_sampler: Callable[[], Sampler],
    folder: Path,
    key_parts: Sequence[object],
    on_progress: OnProgress,
) -> Sampled:
    """Sample `requests`, taking the shards that `folder` holds, and leave just these requests' shards in it.

    `load_sampler` is called only where a shard is missing. `key_parts` name what determines the samples beside the
    requests: the policy, the engine and its version, the parameters. `n_kept` completions of the result were there.
    """
    code = code_fingerprint()
    shards: list[_Shard] = []
    for indices in cut_shards(requests, max_completions):
        wanted = [requests[i] for i in indices]
        name = f"{stable_hash(code, *key_parts, [asdict(request) for request in wanted])}.json"
        shards.append(_Shard(indices, wanted, folder / name))
    there = [_read(shard.file) for shard in shards]
    kept = [(shard, made) for shard, made in zip(shards, there, strict=True) if made is not None]
    missing = [shard for shard, made in zip(shards, there, strict=True) if made is None]
    n_kept = 0
    for _, (groups, _) in kept:
        reasons = [completion.finish_reason for group in groups for completion in group]
        n_kept += len(reasons)
        on_progress(reasons, 0)
    made = _sample_missing(missing, load_sampler, on_progress) if missing else []
    for stale in set(folder.glob("*.json")) - {shard.file for shard in shards}:
        stale.unlink(missing_ok=True)  # a stage beside this one may be faster
    found: dict[int, list[SampledCompletion]] = {}
    for shard, (groups, _) in [*kept, *made]:
        found.update(zip(shard.indices, groups, strict=True))
    seconds = sum(taken for _, (_, taken) in [*kept, *made])
    return Sampled([found[i] for i in range(len(requests))], seconds, n_kept)


def _sample_missing(
    shards: Sequence[_Shard], load_sampler: Callable[[], Sampler], on_progress: OnProgress
) -> list[tuple[_Shard, _Made]]:
    """Sample the shards, keeping each as it is finished."""
    sampler = load_sampler()

    def sample(shard: _Shard) -> tuple[_Shard, _Made]:
        started = time.monotonic()
        groups = sampler.sample(shard.requests, on_progress)
        seconds = (time.monotonic() - started) / min(sampler.n_parallel, len(shards))
        _write(groups, seconds, shard.file)
        return shard, (groups, seconds)

    return run_shards(sampler, shards, sample)


def run_shards(sampler: Sampler, shards: Sequence[ShardT], sample: Callable[[ShardT], ResultT]) -> list[ResultT]:
    """What `sample` gives for each shard, in order, as many at once as `sampler` takes, which is closed in the end.

    The first error ends the work: shards that have not begun don't begin.
    """
    with closing(sampler):
        if sampler.n_parallel == 1:
            return [sample(shard) for shard in shards]
        with ThreadPoolExecutor(sampler.n_parallel) as threads:
            try:
                futures = [threads.submit(sample, shard) for shard in shards]
                _wait_for_all(futures)
            except KeyboardInterrupt:
                threads.shutdown(wait=False, cancel_futures=True)  # first, or a thread takes the next shard
                sampler.close()  # which ends the calls under way: they may take long
                raise
            finally:
                threads.shutdown(wait=True, cancel_futures=True)
            return [future.result() for future in futures]


def _wait_for_all(futures: Sequence[Future[ResultT]]) -> None:
    """Return when all are done, or one has failed.

    Now and then Python has to run for an interrupt to be seen: Polars has signals restart what they interrupt.
    """
    waiting = set(futures)
    while waiting:
        done, waiting = wait(waiting, timeout=SECONDS_BETWEEN_LOOKS, return_when=FIRST_EXCEPTION)
        if any(future.exception() for future in done):
            return


def cut_shards(requests: Sequence[SampleRequest], max_completions: int) -> Iterator[list[int]]:
    """Indices of whole requests, by length of prompt so that little is padding, up to `max_completions` together.

    A request that alone wants more is a shard of its own.
    """
    shard: list[int] = []
    n_held = 0
    for i in sorted(range(len(requests)), key=lambda i: len(requests[i].prompt_token_ids)):
        n_wanted = len(requests[i].seeds)
        if shard and n_held + n_wanted > max_completions:
            yield shard
            shard, n_held = [], 0
        shard.append(i)
        n_held += n_wanted
    if shard:
        yield shard


def code_fingerprint() -> str:
    """SHA-256 of the code that determines what is sampled."""
    return digest_files((file.name, file) for file in code_files())


def code_files() -> list[Path]:
    """The files of `CODE`."""
    return [file for path in CODE for file in (sorted(path.glob("*.py")) if path.is_dir() else [path])]


def _write(groups: list[list[SampledCompletion]], seconds: float, file: Path) -> None:
    value = {"seconds": seconds, "completions": [[asdict(each) for each in group] for group in groups]}
    write_text(json.dumps({**value, "digest": stable_hash(file.stem, value)}), file)


def _read(file: Path) -> _Made | None:
    """The shard that is kept as `file`; None where there is none, or it is torn, or not what was written there."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        digest = value.pop("digest")
        is_whole = digest == stable_hash(file.stem, value)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not is_whole:
        return None
    return [[SampledCompletion(**each) for each in group] for group in value["completions"]], value["seconds"]
