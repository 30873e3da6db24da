"""Sampling in shards that are kept as they are finished, so that what was sampled once is not sampled again.

A shard is kept under a key made of everything that determines it, the code of the sampling engine included. A stage
that was killed goes on from the shards that it finished, to the same result, since the cut does not depend on what
is there already; and an evaluation whose reward alone changed is only scored again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.fingerprint import digest_files
from pipeline.sampling import OnProgress, SampledCompletion, Sampler, SampleRequest
from pipeline.seeds import stable_hash
from pipeline.table_io import write_text

CODE = (Path(__file__).parent, Path(__file__).parent.parent / "policy.py")
"""Files and folders whose code determines what is sampled."""


@dataclass(frozen=True)
class Sampled:
    """Per request its completions; `seconds` is the time that sampling them took, whenever that was."""

    completions: list[list[SampledCompletion]]
    seconds: float
    n_kept: int


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
    found: dict[int, list[SampledCompletion]] = {}
    sampler: Sampler | None = None
    seconds, n_kept = 0.0, 0
    code = code_fingerprint()
    files: set[Path] = set()
    for indices in cut_shards(requests, max_completions):
        shard = [requests[i] for i in indices]
        file = folder / f"{stable_hash(code, *key_parts, [asdict(request) for request in shard])}.json"
        files.add(file)
        if file.is_file():
            completions, taken = _read(file)
            n_completions = sum(map(len, completions))
            n_kept += n_completions
            on_progress(n_completions, 0)
        else:
            sampler = sampler or load_sampler()
            started = time.monotonic()
            completions = sampler.sample(shard, on_progress)
            taken = time.monotonic() - started
            value = {"seconds": taken, "completions": [[asdict(each) for each in group] for group in completions]}
            write_text(json.dumps(value), file)
        seconds += taken
        found.update(zip(indices, completions, strict=True))
    for stale in set(folder.glob("*.json")) - files:
        stale.unlink()
    return Sampled([found[i] for i in range(len(requests))], seconds, n_kept)


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
    return digest_files(
        (file.name, file) for path in CODE for file in (sorted(path.glob("*.py")) if path.is_dir() else [path])
    )


def _read(file: Path) -> tuple[list[list[SampledCompletion]], float]:
    value = json.loads(file.read_text(encoding="utf-8"))
    return [[SampledCompletion(**each) for each in group] for group in value["completions"]], value["seconds"]
