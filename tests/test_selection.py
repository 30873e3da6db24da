"""The draw of prompts: without replacement and seeded; `uniform` goes epoch after epoch."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import BadInput
from pipeline.params import SelectParams
from pipeline.seeds import stable_hash
from pipeline.selection import select_prompts
from pipeline.table_checks import check_schema, check_table
from pipeline.tables import PROMPT_STATS, SELECTION

STATISTICS = {
    name: PROMPT_STATS.schema[name] for name in ("prompt_id", "n_groups", "recent_pass_rate", "last_iteration")
}


def prompts(n_train: int, n_eval: int = 3) -> pl.DataFrame:
    n_prompts = n_train + n_eval
    return pl.DataFrame(
        {
            "prompt_id": [f"{i:016x}" for i in range(n_prompts)],
            "split": pl.Series(["train"] * n_train + ["eval"] * n_eval, dtype=pl.Enum(["train", "eval"])),
        }
    )


def stats(n_groups: dict[str, int]) -> pl.DataFrame:
    known = {"recent_pass_rate": None, "last_iteration": 0}
    rows = [{"prompt_id": prompt_id, "n_groups": n, **known} for prompt_id, n in n_groups.items()]
    return pl.DataFrame(rows, schema=STATISTICS)


def draw(n_train: int, n_groups: dict[str, int], n_prompts: int, seed: int = 0, iteration: int = 0) -> pl.DataFrame:
    params = SelectParams(n_prompts=n_prompts)
    return select_prompts(prompts(n_train), stats(n_groups), iteration, seed, n_prompts, params)


def test_table_obeys_its_schema() -> None:
    selection = draw(10, {}, 4, iteration=3)
    check_schema(selection.schema, SELECTION, "selection")
    check_table(selection, SELECTION, "selection")
    assert selection["iteration"].to_list() == [3] * 4
    assert selection["position"].to_list() == [0, 1, 2, 3]


def test_no_statistics_yet_is_epoch_0_of_the_train_split_alone() -> None:
    selection = select_prompts(prompts(5), stats({}), 0, 0, 5, SelectParams(n_prompts=5))
    assert set(selection["prompt_id"]) == {f"{i:016x}" for i in range(5)}
    assert set(selection["reason"]) == {"epoch 0"}


def test_order_is_that_of_the_hash() -> None:
    selection = draw(20, {}, 20, seed=7)
    by_hash = sorted((f"{i:016x}" for i in range(20)), key=lambda prompt_id: stable_hash(7, 0, prompt_id))
    assert selection["prompt_id"].to_list() == by_hash


def test_prompts_shown_least_come_first_and_the_next_epoch_fills_up() -> None:
    seen = {f"{i:016x}": 1 for i in range(6)}  # 6 of 8 were shown: 2 are left of epoch 0
    selection = draw(8, seen, 5)
    assert set(selection["prompt_id"][:2]) == {f"{i:016x}" for i in (6, 7)}
    assert set(selection["prompt_id"][2:]) <= set(seen)
    assert selection["reason"].to_list() == ["epoch 0"] * 2 + ["epoch 1"] * 3


def test_statistics_of_prompts_that_are_gone_or_held_out_are_ignored() -> None:
    selection = draw(2, {"no such prompt": 0, f"{3:016x}": 0, f"{0:016x}": 4}, 2)
    assert selection["reason"].to_list() == ["epoch 0", "epoch 4"]


def test_each_epoch_and_seed_has_its_own_order() -> None:
    first = draw(30, {}, 30)["prompt_id"].to_list()
    second = draw(30, {f"{i:016x}": 1 for i in range(30)}, 30)["prompt_id"].to_list()
    other = draw(30, {}, 30, seed=1)["prompt_id"].to_list()
    assert sorted(first) == sorted(second) == sorted(other)
    assert len({tuple(first), tuple(second), tuple(other)}) == 3


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_epochs_end_only_when_every_prompt_was_seen(n_train: int, n_prompts: int, seed: int) -> None:
    n_prompts = min(n_prompts, n_train)
    n_groups: dict[str, int] = {}
    shown: list[str] = []
    for iteration in range(6):
        drawn = draw(n_train, n_groups, n_prompts, seed, iteration)["prompt_id"].to_list()
        assert len(set(drawn)) == n_prompts
        shown += drawn
        for prompt_id in drawn:
            n_groups[prompt_id] = n_groups.get(prompt_id, 0) + 1
    for start in range(0, len(shown) - n_train + 1, n_train):
        assert len(set(shown[start : start + n_train])) == n_train


def test_too_few_train_prompts_name_both_counts() -> None:
    with pytest.raises(BadInput, match=r"select.n_prompts: 5 prompts are needed, and the train split has 4\. "):
        draw(4, {}, 5)


def test_more_prompts_than_are_wanted_begin_with_those() -> None:
    few = select_prompts(prompts(20), stats({}), 0, 3, 8, SelectParams(n_prompts=8))
    more = select_prompts(prompts(20), stats({}), 0, 3, 12, SelectParams(n_prompts=8))
    assert more.head(8).equals(few)
    assert more["position"].to_list() == [*range(12)]


def test_difficulty_gets_what_the_statistics_know() -> None:
    known = pl.DataFrame(
        [
            (f"{0:016x}", 2, 0.5, 3),
            (f"{1:016x}", 1, 1.0, 3),
            (f"{3:016x}", 9, 0.5, 3),  # of the eval split
            ("vanished", 9, 0.5, 3),
        ],
        schema=STATISTICS,
        orient="row",
    )
    params = SelectParams(n_prompts=3, strategy="difficulty")
    selection = select_prompts(prompts(3), known, 4, 0, 3, params)
    check_table(selection, SELECTION, "selection")
    assert list(selection.select("prompt_id", "reason").iter_rows()) == [
        (f"{2:016x}", "unseen"),  # added to the run
        (f"{0:016x}", "signal p=0.50"),
        (f"{1:016x}", "filler p=1.00 after 1 iteration"),
    ]
