r"""Terms -> reward: a weighted sum of the terms, of which some count only where the completion is correct, clipped.

reward = clip(\sum_t weight_t * gate_t * value_t), where gate_t of a gated term is 1 if the completion is correct and 0
if it is wrong, and that of any other term is 1.

Null is not zero. The reward is null where a required term's value is, or where a gated one's gate is since there is no
verdict. An optional term that is null adds nothing, and neither does a gated one that is null where the gate is 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl

from pipeline.params import TermParams
from pipeline.tables import TERM


class Composed(NamedTuple):
    """Expressions over columns `is_correct` and `column_of` each term."""

    reward: pl.Expr
    error: pl.Expr
    """Why a sum is no reward: null where it is one."""


def column_of(term: str) -> str:
    """The column of `rewards` that holds the values of a term."""
    return f"{TERM}{term}"


def compose_rewards(terms: Mapping[str, TermParams], clip: Sequence[float] | None) -> Composed:
    """The reward that `terms` make, by name.

    A sum beyond floating point is no reward: null, and `error` says so.
    """
    total = pl.lit(0.0)
    for name, settings in terms.items():
        total = total + _contribution(name, settings)
    reward = pl.when(total.is_finite()).then(total)
    error = pl.when(~total.is_finite()).then(pl.lit("reward: the weighted sum is not finite"))
    return Composed(reward.clip(*clip) if clip else reward, error)


def _contribution(name: str, settings: TermParams) -> pl.Expr:
    share = settings.weight * pl.col(column_of(name))
    if settings.gated:
        share = pl.when("is_correct").then(share).when(~pl.col("is_correct")).then(0.0)
    return share if settings.required else share.fill_null(0.0)
