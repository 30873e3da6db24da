"""Two commits side by side: each completion of one with its counterpart in the other."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from pipeline.errors import BadInput
from pipeline.report.choice import Tables

PLACE = pl.col("completion_id").str.split("/").list.last()
"""Of a completion in its group."""


@dataclass(frozen=True)
class Against:
    """The counterparts of the completions, and what changed, in words.

    `table` has a row per completion that has one: completion_id, `flip` (gained, lost, reward, same), and of the
    counterpart against_text (null where the text is the same), against_n_characters, against_reward,
    against_is_correct and against_extracted_answer.
    """

    table: pl.LazyFrame
    groups_by_flips: list[str]
    note: str


def compare_with(mine: Tables, theirs: Tables, name: str) -> Against:
    """The completions of `mine` beside those of `theirs`, which is called `name`.

    They belong together by their id, as where rewards were edited; where no id is in both, by prompt and place in the
    group. Then the texts are other ones, and a flip says how two draws differ.

    Raises:
        BadInput: they have no prompt in common.
    """
    pairs, how = _pairs(mine, theirs, name)
    flips = pairs.group_by("flip").len().collect()
    counts = dict(flips.iter_rows())
    by_group = pairs.filter(pl.col("flip") != "same").group_by("group_id").len().collect()
    texts = theirs["rollouts"].select(against_id="completion_id", against_text="completion_text")
    own = mine["rollouts"].select("completion_id", "completion_text")
    text = pl.col("against_text")
    table = (
        pairs.join(texts, "against_id", "left")
        .join(own, "completion_id", "left")
        .with_columns(
            against_n_characters=text.str.len_chars(),
            against_text=pl.when(text != pl.col("completion_text")).then(text),
        )
        .drop("against_id", "completion_text", "group_id")
    )
    note = (
        f"Beside {name}: {sum(counts.values()):,} completions are in both, matched by {how}; "
        f"{counts.get('gained', 0):,} gained (correct here, not there), {counts.get('lost', 0):,} lost, "
        f"{counts.get('reward', 0):,} with another reward alone"
    )
    return Against(table, by_group.sort("len", "group_id", descending=[True, False])["group_id"].to_list(), note)


def _pairs(mine: Tables, theirs: Tables, name: str) -> tuple[pl.LazyFrame, str]:
    columns = ["completion_id", "group_id", "prompt_id", "reward", "is_correct"]
    ours = mine["rewards"].select(*columns, place=PLACE)
    others = theirs["rewards"].select(
        "prompt_id",
        against_id="completion_id",
        place=PLACE,
        against_reward="reward",
        against_is_correct="is_correct",
        against_extracted_answer="extracted_answer",
    )
    keyed = others.with_columns(completion_id="against_id").drop("prompt_id", "place")
    by_id = ours.join(keyed, "completion_id")
    if by_id.select(pl.len()).collect().item():
        return _judged(by_id), "id"
    latest = others.sort("against_id").unique(["prompt_id", "place"], keep="last")
    by_prompt = ours.join(latest, ["prompt_id", "place"])
    if not by_prompt.select(pl.len()).collect().item():
        raise BadInput(f"--against {name}", "the two have no prompt in common", "Compare iterations that share prompts")
    return _judged(by_prompt), "prompt and place in the group"


def _judged(pairs: pl.LazyFrame) -> pl.LazyFrame:
    here, there = pl.col("is_correct").fill_null(False), pl.col("against_is_correct").fill_null(False)
    is_equal = pl.col("reward").eq_missing(pl.col("against_reward"))
    flip = (
        pl.when(here & ~there)
        .then(pl.lit("gained"))
        .when(there & ~here)
        .then(pl.lit("lost"))
        .when(~is_equal)
        .then(pl.lit("reward"))
        .otherwise(pl.lit("same"))
    )
    return pairs.select("completion_id", "group_id", pl.selectors.starts_with("against_"), flip=flip)
