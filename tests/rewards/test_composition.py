"""How terms make a reward: weights, gates, what is required, and bounds."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from pipeline.params import TermParams
from pipeline.rewards.composition import compose_rewards

COLUMNS = {"is_correct": pl.Boolean, "reward_correct": pl.Float64, "reward_shape": pl.Float64}
ROWS: list[tuple[bool | None, float | None, float | None]] = [
    (True, 1.0, 0.5),
    (False, 0.0, 0.5),
    (True, 1.0, None),
    (False, 0.0, None),
    (None, None, 0.5),
]


def compose(clip: list[float] | None = None, **shape: Any) -> list[float | None]:
    terms = load({"correct": {"weight": 1.0}, "shape": {"weight": -0.4, **shape}})
    values = pl.DataFrame(ROWS, schema=COLUMNS, orient="row")
    rewards: list[float | None] = values.select(compose_rewards(terms, clip).reward).to_series().to_list()
    return rewards


def load(params: dict[str, dict[str, Any]]) -> dict[str, TermParams]:
    return {name: TermParams.model_validate(each) for name, each in params.items()}


def test_a_weighted_sum_that_is_null_where_a_term_is() -> None:
    # 1 - 0.4 * 0.5 = 0.8 and 0 - 0.4 * 0.5 = -0.2
    assert compose() == [pytest.approx(0.8), pytest.approx(-0.2), None, None, None]


def test_a_gated_term_counts_only_where_the_completion_is_correct() -> None:
    # In the fourth row the term can't judge, but its gate is shut.
    assert compose(gated=True) == [pytest.approx(0.8), 0.0, None, 0.0, None]


def test_without_an_optional_term_the_others_make_the_reward() -> None:
    assert compose(required=False) == [pytest.approx(0.8), pytest.approx(-0.2), 1.0, 0.0, None]
    assert compose(gated=True, required=False) == [pytest.approx(0.8), 0.0, 1.0, 0.0, None]


def test_a_gate_without_a_verdict_is_a_missing_term() -> None:
    terms = load({"shape": {"weight": 1.0, "gated": True}})
    optional = load({"shape": {"weight": 1.0, "gated": True, "required": False}})
    values = pl.DataFrame({"is_correct": [None], "reward_shape": [0.5]}, schema_overrides={"is_correct": pl.Boolean})
    assert values.select(compose_rewards(terms, None).reward).to_series().to_list() == [None]
    assert values.select(compose_rewards(optional, None).reward).to_series().to_list() == [0.0]


def test_the_sum_is_clipped_and_null_stays_null() -> None:
    assert compose(clip=[-0.1, 0.5]) == [0.5, -0.1, None, None, None]


def test_a_sum_beyond_floating_point_is_null_and_says_so_however_it_is_clipped() -> None:
    terms = load({name: {"weight": weight} for name, weight in (("a", 1e308), ("b", 1e308))})
    values = pl.DataFrame({"is_correct": [True, None], "reward_a": [1.0, None], "reward_b": [1.0, None]})
    for clip in (None, [0.0, 1.0]):
        composed = values.select(**compose_rewards(terms, clip)._asdict())
        assert composed["reward"].to_list() == [None, None]
        assert composed["error"].to_list() == ["reward: the weighted sum is not finite", None]
