from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pipeline.sampling import FinishReason, OnProgress, SampledCompletion, SampleRequest, shards
from pipeline.sampling.shards import Sampled, cut_shards, sample_in_shards
from tests.killing import kill_among_files
from tests.stage_runs import ROOT

REQUESTS = [SampleRequest([0] * n, [10 * n + i for i in range(2)]) for n in (5, 3, 4, 1)]


class CountingSampler:
    """Says the seed of each completion, and breaks at the call number `breaks_at`."""

    def __init__(self, breaks_at: int | None = None, n_parallel: int = 1) -> None:
        self.calls: list[list[int]] = []
        self.n_parallel = n_parallel
        self.n_closed = 0
        self.breaks_at = breaks_at

    def sample(self, requests: Sequence[SampleRequest], on_progress: OnProgress) -> list[list[SampledCompletion]]:
        if len(self.calls) == self.breaks_at:
            raise KeyboardInterrupt
        self.calls.append([len(request.prompt_token_ids) for request in requests])
        on_progress(["stop"] * sum(len(request.seeds) for request in requests), 1)
        return [
            [SampledCompletion([seed], [-0.1 * seed], "stop", seed) for seed in request.seeds] for request in requests
        ]

    def close(self) -> None:
        self.n_closed += 1


def sample(folder: Path, sampler: CountingSampler, policy: str = "a", n_progress: list[int] | None = None) -> Sampled:
    def on_progress(reasons: Sequence[FinishReason], _n_tokens: int) -> None:
        if n_progress is not None:
            n_progress.append(len(reasons))

    return sample_in_shards(REQUESTS, 4, lambda: sampler, folder, [policy], on_progress)


def test_shards_hold_whole_requests_by_length() -> None:
    # Lengths 1, 3, 4, 5 with two completions each, four at a time: (1, 3) and (4, 5).
    assert list(cut_shards(REQUESTS, 4)) == [[3, 1], [2, 0]]
    assert list(cut_shards(REQUESTS, 5)) == [[3, 1], [2, 0]]
    assert list(cut_shards(REQUESTS, 1)) == [[3], [1], [2], [0]]
    assert list(cut_shards([], 4)) == []


def test_completions_come_in_the_order_of_the_requests(tmp_path: Path) -> None:
    sampled = sample(tmp_path, CountingSampler())
    assert [[each.token_ids for each in group] for group in sampled.completions] == [
        [[50], [51]],
        [[30], [31]],
        [[40], [41]],
        [[10], [11]],
    ]
    assert sampled.n_kept == 0


def test_a_second_time_nothing_is_sampled_and_no_engine_is_loaded(tmp_path: Path) -> None:
    first = sample(tmp_path, CountingSampler())

    def fail() -> CountingSampler:
        raise AssertionError("an engine was loaded")

    second = sample_in_shards(REQUESTS, 4, fail, tmp_path, ["a"], lambda *_: None)
    assert second.completions == first.completions
    assert (second.n_kept, second.seconds) == (8, first.seconds)


def test_a_killed_try_goes_on_from_its_finished_shards(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        sample(tmp_path, CountingSampler(breaks_at=1))
    sampler = CountingSampler()
    progress: list[int] = []
    sampled = sample(tmp_path, sampler, n_progress=progress)
    assert sampler.calls == [[4, 5]]
    assert sampled.n_kept == 4
    assert progress == [4, 4]
    assert sampled.completions == sample(tmp_path / "other", CountingSampler()).completions


def test_another_policy_request_or_code_is_sampled_anew_and_old_shards_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample(tmp_path, CountingSampler())
    before = set(tmp_path.iterdir())
    other = CountingSampler()
    sample(tmp_path, other, policy="b")
    assert len(other.calls) == 2
    assert set(tmp_path.iterdir()).isdisjoint(before)
    monkeypatch.setattr(shards, "code_fingerprint", lambda: "edited")
    edited = CountingSampler()
    sample(tmp_path, edited, policy="b")
    assert len(edited.calls) == 2


def test_the_fingerprint_of_the_code_sees_an_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(shards, "CODE", (tmp_path,))
    before = shards.code_fingerprint()
    (tmp_path / "a.py").write_text("x = 2\n")
    assert shards.code_fingerprint() != before


def test_an_engine_is_closed_however_sampling_ends(tmp_path: Path) -> None:
    whole, broken = CountingSampler(), CountingSampler(breaks_at=1)
    sample(tmp_path / "whole", whole)
    with pytest.raises(KeyboardInterrupt):
        sample(tmp_path / "broken", broken)
    assert (whole.n_closed, broken.n_closed) == (1, 1)


class WaitingSampler(CountingSampler):
    """Returns from a call only when two calls run at once."""

    def __init__(self) -> None:
        super().__init__(n_parallel=2)
        self.meeting = threading.Barrier(2, timeout=10)

    def sample(self, requests: Sequence[SampleRequest], on_progress: OnProgress) -> list[list[SampledCompletion]]:
        self.meeting.wait()
        return super().sample(requests, on_progress)


def test_shards_run_side_by_side_where_an_engine_takes_several(tmp_path: Path) -> None:
    sampled = sample(tmp_path / "beside", WaitingSampler())
    assert sampled.completions == sample(tmp_path / "alone", CountingSampler()).completions


class FailingSampler(CountingSampler):
    """Fails at the shard of the longest prompts."""

    def sample(self, requests: Sequence[SampleRequest], on_progress: OnProgress) -> list[list[SampledCompletion]]:
        if len(requests[-1].prompt_token_ids) == 5:
            raise ConnectionError("the rank is gone")
        return super().sample(requests, on_progress)


def test_a_shard_that_fails_beside_others_is_an_error_and_theirs_are_kept(tmp_path: Path) -> None:
    failing = FailingSampler(n_parallel=2)
    with pytest.raises(ConnectionError, match="the rank is gone"):
        sample(tmp_path, failing)
    assert failing.n_closed == 1
    assert sample(tmp_path, CountingSampler()).n_kept == 4


# Damage and company ---------------------------------------------------------------------------------------------------

DAMAGES: dict[str, Callable[[str], str]] = {
    "torn": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "no text": lambda text: "\udcff" + text,
    "another token": lambda text: text.replace("[50]", "[51]"),
    "another value": lambda text: '"a shard"',
    "not a number": lambda text: text.replace("-5.0", "NaN"),
    "an older file": lambda text: text.partition(', "digest"')[0] + "}",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_shard_that_is_damaged_is_sampled_again(damage: str, tmp_path: Path) -> None:
    first = sample(tmp_path, CountingSampler())
    (file,) = [file for file in tmp_path.iterdir() if "[50]" in file.read_text()]
    whole = file.read_text()
    damaged = DAMAGES[damage](whole)
    assert damaged != whole
    file.write_bytes(damaged.encode("utf-8", "surrogateescape"))
    sampler = CountingSampler()
    again = sample(tmp_path, sampler)
    assert sampler.calls == [[4, 5]]
    assert (again.completions, again.n_kept) == (first.completions, 4)
    assert sample(tmp_path, CountingSampler()).n_kept == 8


def test_a_shard_under_the_name_of_another_is_not_believed(tmp_path: Path) -> None:
    first = sample(tmp_path, CountingSampler())
    one, other = tmp_path.iterdir()
    one.write_bytes(other.read_bytes())
    again = sample(tmp_path, CountingSampler())
    assert (again.completions, again.n_kept) == (first.completions, 4)


class MeddlingSampler(CountingSampler):
    """Beside it, at each call, another stage works in the same folder: that of the policy `policy`."""

    def __init__(self, folder: Path, policy: str) -> None:
        super().__init__()
        self.folder, self.policy = folder, policy

    def sample(self, requests: Sequence[SampleRequest], on_progress: OnProgress) -> list[list[SampledCompletion]]:
        sample(self.folder, CountingSampler(), self.policy)
        return super().sample(requests, on_progress)


@pytest.mark.parametrize("policy", ["a", "b"])
def test_two_stages_in_one_folder_do_not_disturb_each_other(policy: str, tmp_path: Path) -> None:
    """One of the same policy writes the same shards; one of another takes them for stale, and is taken so itself."""
    beside = sample(tmp_path / "shared", MeddlingSampler(tmp_path / "shared", policy))
    assert beside.completions == sample(tmp_path / "alone", CountingSampler()).completions
    assert sample(tmp_path / "shared", CountingSampler()).completions == beside.completions


# Kills ----------------------------------------------------------------------------------------------------------------

SAMPLE_SLOWLY = """
import sys, time
from pathlib import Path
from tests.sampling.test_shards import CountingSampler, sample_many

class Slow(CountingSampler):
    def sample(self, requests, on_progress):
        time.sleep(0.02)
        return super().sample(requests, on_progress)

sample_many(Path(sys.argv[1]), Slow())
print("whole")
"""
N_SHARDS = 40


def sample_many(folder: Path, sampler: CountingSampler) -> Sampled:
    requests = [SampleRequest([0] * (n + 1), [10 * n + i for i in range(2)]) for n in range(N_SHARDS)]
    return sample_in_shards(requests, 2, lambda: sampler, folder, ["a"], lambda *_: None)


def test_a_process_that_is_killed_at_any_moment_leaves_whole_shards(tmp_path: Path) -> None:
    expected = sample_many(tmp_path / "alone", CountingSampler())
    draw = random.Random(0)
    folder = tmp_path / "killed"
    n_kept = 0
    while n_kept < N_SHARDS // 4:
        process = subprocess.Popen([sys.executable, "-c", SAMPLE_SLOWLY, str(folder)], cwd=ROOT, stdout=subprocess.PIPE)
        wanted = n_kept + draw.randint(2, 6)
        n_kept = kill_among_files(process, folder, wanted, draw)
        assert wanted <= n_kept < N_SHARDS
    sampler = CountingSampler()
    resumed = sample_many(folder, sampler)
    assert resumed.completions == expected.completions
    assert resumed.n_kept == 2 * n_kept
    assert len(sampler.calls) == N_SHARDS - n_kept


class StuckSampler(CountingSampler):
    """Returns from a call only when it is closed."""

    def __init__(self) -> None:
        super().__init__(n_parallel=2)
        self.is_called, self.is_closed = threading.Event(), threading.Event()

    def sample(self, requests: Sequence[SampleRequest], on_progress: OnProgress) -> list[list[SampledCompletion]]:
        self.is_called.set()
        assert self.is_closed.wait(10)
        return super().sample(requests, on_progress)

    def close(self) -> None:
        super().close()
        self.is_closed.set()


def test_an_interrupt_ends_the_calls_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = StuckSampler()

    def interrupt(*_: object, **__: object) -> None:
        assert sampler.is_called.wait(10)
        raise KeyboardInterrupt

    monkeypatch.setattr(shards, "wait", interrupt)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        sample(tmp_path, sampler)
    assert time.monotonic() - started < 5
    assert sampler.n_closed == 2  # at once, and as always
