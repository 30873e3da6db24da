"""`rollbook replay` of an iteration that a tiny model really sampled: the same again, and what differs by design."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from pipeline.cli import app
from pipeline.errors import BadInput
from pipeline.params_sampling import ServerParams
from pipeline.replay.choice import Choice, StoredGroup, choose_completions, shards_with, stored_groups
from pipeline.replay.comparison import compare_completions
from pipeline.replay_command import sampling_of
from pipeline.sampling import Engine, SampledCompletion, SampleRequest, origin
from pipeline.seeds import stable_seed
from pipeline.stored_iteration import find_stored
from pipeline.tables import ROLLOUTS, SELECTION
from tests import threads
from tests.replay.stored_run import GROUP_SIZE, SELECTED, StoredRun, with_tokens
from tests.stage_runs import write_params
from tests.tiny_model import build_tiny_model

N_COMPLETIONS = len(SELECTED) * GROUP_SIZE


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Threads cost a model this small more than they give."""
    with threads.one_thread():
        yield


@pytest.fixture(scope="module")
def stored(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    return StoredRun(tmp_path_factory.mktemp("stored"))


@pytest.fixture(autouse=True)
def in_the_repository(stored: StoredRun, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stored.root / "a folder in it"
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)


def replay(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["replay", *arguments])
    assert result.exit_code == code, result.output
    return result


def replayed(*arguments: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(replay(*arguments, "--json", code=code).stdout)
    return found


def longest(stored: StoredRun) -> tuple[str, list[int]]:
    """The completion with the most tokens."""
    row = stored.rollouts.sort(pl.col("completion_token_ids").list.len()).row(-1, named=True)
    return row["completion_id"], row["completion_token_ids"]


def test_all_completions_come_out_again(stored: StoredRun) -> None:
    found = replayed("demo/0000")
    assert (found["n_completions"], found["n_identical"], found["n_rolled_out_along"]) == (N_COMPLETIONS,) * 2 + (0,)
    assert (found["changes"], found["is_promised"]) == ([], True)
    assert found["n_shared_tokens"] == stored.rollouts["completion_token_ids"].list.len().sum()
    assert (found["logprob_max_difference"], found["logprob_mean_difference"]) == (0.0, 0.0)
    assert [row["completion_id"] for row in found["completions"]] == stored.rollouts["completion_id"].to_list()


def test_an_iteration_has_several_names_and_nothing_is_left_of_a_replay(stored: StoredRun) -> None:
    commit = find_stored(stored.repository, "demo/0").iteration.commit
    before = sorted(stored.root.rglob("*"))
    for name in ("demo", commit, "refs/tags/demo/0000"):
        said = replay(name, "--sample", "1").output
        assert f"demo/0000: 1 of 1 completions are identical, token for token; {2 * GROUP_SIZE - 1} more" in said
    new = {path for path in stored.root.rglob("*") if path not in before}
    assert new <= {stored.root / ".rollbook", stored.root / ".rollbook/laid_out"}
    assert "main: commit" in replay("main", code=1).output


def test_one_completion_comes_with_its_shard(stored: StoredRun) -> None:
    found = replayed("demo/0000", "--completion-id", "0000/p3/1")
    assert [row["completion_id"] for row in found["completions"]] == ["0000/p3/1"]
    assert (found["n_identical"], found["n_rolled_out_along"]) == (1, 2 * GROUP_SIZE - 1)
    message = "completion 0000/p9/0: demo/0000 has no such completion"
    assert message in replay("demo/0000", "--completion-id", "0000/p9/0", code=1).output
    assert replay("demo/0000", "--completion-id", "0000/p3/1", "--sample", "2", code=2).exit_code == 2


def test_a_token_that_was_tampered_with_is_found_at_its_place(stored: StoredRun) -> None:
    completion_id, tokens = longest(stored)
    assert len(tokens) > 3
    other = 5 if tokens[2] != 5 else 6
    stored.store("tampered", with_tokens(stored.rollouts, completion_id, [*tokens[:2], other, *tokens[3:]]))
    found = replayed("tampered/0000", code=1)
    assert found["n_identical"] == N_COMPLETIONS - 1
    (row,) = found["differing"]
    assert (row["completion_id"], row["first_difference"]) == (completion_id, 2)
    assert row["logprob_max_difference"] == 0.0
    # All but the tokens from the third on of the one completion.
    n_tokens = stored.rollouts["completion_token_ids"].list.len().sum()
    assert found["n_shared_tokens"] == n_tokens - len(tokens) + 2
    marked = re.compile("⟦.⟧")
    assert marked.search(row["stored"])
    assert marked.sub("", row["stored"]) == marked.sub("", row["again"])
    said = replay("tampered/0000", code=1).output
    assert f"tampered/0000: {N_COMPLETIONS - 1} of {N_COMPLETIONS} completions are identical" in said
    assert completion_id in said


def test_a_log_probability_that_was_tampered_with_is_measured(stored: StoredRun) -> None:
    completion_id, tokens = longest(stored)
    changed = pl.col("sampling_logprobs").list.eval(pl.element() - 0.25)
    rollouts = stored.rollouts.with_columns(
        sampling_logprobs=pl.when(completion_id=completion_id).then(changed).otherwise("sampling_logprobs")
    )
    stored.store("shifted", rollouts)
    found = replayed("shifted/0000")
    assert found["n_identical"] == N_COMPLETIONS
    assert found["logprob_max_difference"] == pytest.approx(0.25, rel=1e-5)
    assert found["logprob_mean_difference"] == pytest.approx(0.25 * len(tokens) / found["n_shared_tokens"], rel=1e-5)


def test_another_policy_is_refused(stored: StoredRun, tmp_path: Path) -> None:
    build_tiny_model(tmp_path / "policy", seed=1)
    stored.store("other", policy=tmp_path / "policy")
    said = replay("other/0000", code=1).output
    assert "policy of other/0000: its fingerprint is " in said
    assert f"on record to be of {stored.metadata['policy_fingerprint']}" in said


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batching", "max_batch_completions=64 shard_completions=64"),
        ("engine_version", "4.0.0 (torch 1.0.0)"),
        ("device", "NVIDIA H200"),
        ("engine", "vllm"),
    ],
)
def test_other_conditions_are_named_and_nothing_is_promised(stored: StoredRun, key: str, value: str) -> None:
    completion_id, tokens = longest(stored)
    shorter = with_tokens(stored.rollouts, completion_id, tokens[:-1])
    stored.store(f"other_{key}", shorter, {**stored.metadata, key: value})
    found = replayed(f"other_{key}/0000")
    assert found["changes"] == [f"{key}: it was {value}, and here it is {stored.metadata[key]}"]
    assert (found["is_promised"], found["is_repeatable"]) == (False, True)
    (row,) = found["differing"]
    assert row["first_difference"] == len(tokens) - 1
    assert row["stored"].endswith("⟦⟧")
    assert f"equality is not promised: {key}: it was {value}" in replay(f"other_{key}/0000").output


def test_rollouts_of_an_older_release_say_less(stored: StoredRun) -> None:
    later = ("device", "seed_scope", "is_repeatable")
    stored.store("older", metadata={key: value for key, value in stored.metadata.items() if key not in later})
    found = replayed("older/0000", "--sample", "1")
    assert found["changes"] == [f"device: it was not recorded, and here it is {stored.metadata['device']}"]


def test_other_code_of_the_sampler_is_named(stored: StoredRun) -> None:
    code = {"pipeline/sampling/draw.py": "older", "pipeline/sampling/gone.py": "older"}
    stored.store("older_code", code=code)
    found = replayed("older_code/0000", "--sample", "1")
    assert found["changes"] == [f"code: not as in older_code/0000 are {', '.join(code)}"]
    assert not found["is_promised"]


def test_an_engine_that_does_not_repeat_itself_is_no_failure(
    stored: StoredRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    completion_id, tokens = longest(stored)
    engine = Engine("transformers", stored.metadata["engine_version"], "completion", is_repeatable=False)
    monkeypatch.setattr(origin, "describe_engine", lambda params: engine)
    stored.store(
        "unsteady",
        with_tokens(stored.rollouts, completion_id, tokens[:-1]),
        {**stored.metadata, "is_repeatable": "false"},
    )
    assert "The engine does not promise to repeat itself" in replay("unsteady/0000").output


def test_servers_are_where_params_yaml_says_that_they_are_now(
    stored: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = find_stored(stored.repository, "demo/0000")
    assert sampling_of(own) is own.params.sampling
    monkeypatch.chdir(tmp_path)
    then = ServerParams(urls=["http://then:8000"], per_completion_seeds=False)
    sampling = own.params.sampling.model_copy(update={"engine": "server", "server": then, "temperature": 0.5})
    served = replace(own, params=own.params.model_copy(update={"sampling": sampling}))
    write_params(tmp_path, {"sampling.server": {"urls": ["http://now:8000"], "n_tries": 2}})
    found = sampling_of(served)
    assert found.temperature == 0.5
    assert found.server == ServerParams(urls=["http://now:8000"], per_completion_seeds=False, n_tries=2)
    write_params(tmp_path, {})
    assert sampling_of(served).server == then


# Choice ---------------------------------------------------------------------------------------------------------------


def groups_of(*sizes: int) -> list[StoredGroup]:
    """Groups 0000/a, 0000/b ... of so many completions, whose prompts are longer one by one."""
    return [
        StoredGroup(f"0000/{chr(97 + place)}", SampleRequest([1] * (place + 1), list(range(size))))
        for place, size in enumerate(sizes)
    ]


def test_a_drawn_choice_is_spread_over_groups_and_seeded() -> None:
    groups = groups_of(3, 3, 3, 3)
    four = choose_completions(groups, Choice(n_completions=4), "demo/0000")
    assert [each.rpartition("/")[0] for each in four] == ["0000/a", "0000/b", "0000/c", "0000/d"]
    assert four == choose_completions(groups, Choice(n_completions=4), "demo/0000")
    drawn = {tuple(choose_completions(groups, Choice(n_completions=4, seed=seed), "demo/0000")) for seed in range(9)}
    assert len(drawn) > 1
    six = choose_completions(groups, Choice(n_completions=6), "demo/0000")
    assert set(four) < set(six)
    assert len(choose_completions(groups, Choice(n_completions=99), "demo/0000")) == 12


def test_shards_are_those_of_all_requests() -> None:
    # By length, four a shard: a and b make one; c alone has five; d and e make one.
    groups = groups_of(2, 2, 5, 2, 2)
    names = [[group.group_id for group in shard] for shard in shards_with(groups, ["0000/b/1", "0000/e/0"], 4)]
    assert names == [["0000/a", "0000/b"], ["0000/d", "0000/e"]]
    assert len(shards_with(groups, [each for group in groups for each in group.completion_ids], 4)) == 3


def frames(seeds: list[int]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rollouts of the prompts a and b, one completion each, and the selection, in which b is the first."""
    rows = [
        {
            "iteration": 2,
            "prompt_id": name,
            "group_id": f"0002/{name}",
            "completion_id": f"0002/{name}/0",
            "completion_index": 0,
            "seed": seed,
            "prompt_token_ids": [1],
            "completion_token_ids": [5, 6, 7],
            "completion_text": "",
            "sampling_logprobs": [-1.0, -2.0, -3.0],
            "finish_reason": "stop",
        }
        for name, seed in zip("ab", seeds, strict=True)
    ]
    drawn = [{"iteration": 2, "position": i, "prompt_id": name, "reason": ""} for i, name in enumerate("ba")]
    return pl.DataFrame(rows, schema=ROLLOUTS.schema), pl.DataFrame(drawn, schema=SELECTION.schema)


def test_requests_come_in_the_order_of_the_selection_with_the_seeds_that_they_had() -> None:
    rollouts, selection = frames([11, 12])
    own = stored_groups(rollouts, selection, 1, (7, 2), "completion")
    assert [(group.group_id, group.request.seeds) for group in own] == [("0002/b", [12]), ("0002/a", [11])]
    assert stored_groups(rollouts, selection, 1, (7, 2), "none") == own
    shared = stored_groups(rollouts, selection, 1, (7, 2), "shard")
    assert [group.request.seeds for group in shared] == [[stable_seed(7, 2, name, 0)] for name in "ba"]
    with pytest.raises(BadInput, match=r"its prompts are not those of data/selection\.parquet"):
        stored_groups(rollouts.head(1), selection, 1, (7, 2), "completion")


def test_a_comparison_by_hand() -> None:
    rollouts, _ = frames([11, 12])
    again = {
        "0002/a/0": SampledCompletion([5, 6, 8], [-1.5, -2.25, -9.0], "stop", 11),
        "0002/b/0": SampledCompletion([5, 6, 7], [-1.0, -2.0, -3.0], "length", 12),
    }
    first, second = compare_completions(rollouts, again).to_dicts()
    # Up to the third token: |-1 + 1.5| = 0.5 and |-2 + 2.25| = 0.25, on average 0.375.
    assert first == {
        "completion_id": "0002/a/0",
        "n_tokens": 3,
        "n_tokens_again": 3,
        "first_difference": 2,
        "logprob_max_difference": 0.5,
        "logprob_mean_difference": 0.375,
        "is_identical": False,
    }
    # The same tokens with another end: it was the limit that changed.
    assert (second["first_difference"], second["logprob_max_difference"], second["is_identical"]) == (None, 0.0, False)
