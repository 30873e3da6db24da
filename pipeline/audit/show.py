"""One completion, group or prompt through its whole life, looked up by its id."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import polars as pl

from pipeline.audit.tables import Tables, brief_rollouts, rows_so_far
from pipeline.errors import BadInput

_ID = re.compile(r"(?:(?P<iteration>\d{4,9})/)?(?P<prompt_id>[^/]+)(?:/(?P<index>\d+))?")

Row = dict[str, Any]


@dataclass(frozen=True)
class Life:
    """What the tables have of a prompt, of its group or groups, and of their completions, or of one of them.

    A row of `completions` has the columns of rollouts but for the token lists, those of rewards and advantages, and
    `n_tokens`, `is_scored` and `is_filtered` (whether it, or its group, has come that far), `is_trained` (it is in the
    training set) and `steps` (the optimizer steps that used it).
    """

    prompt: Row
    groups: list[Row]
    completions: list[Row]


def look_up(tables: Tables, wanted: str) -> Life:
    """The life of `wanted`: a completion `0003/<prompt_id>/2`, a group `0003/<prompt_id>` or a prompt `<prompt_id>`.

    Raises:
        BadInput: it is no id, or there is no such thing in these tables, or they are of several runs.
    """
    match = _ID.fullmatch(wanted)
    if match is None or (match["index"] and not match["iteration"]):
        remedy = "A completion is 0003/<prompt_id>/2, a group 0003/<prompt_id>, and a prompt <prompt_id>"
        raise BadInput(f"id {wanted!r}", "it is none of a completion, a group or a prompt", remedy)
    near = _of_one_iteration(tables, match["iteration"], wanted)
    prompts = near.distinct("prompts").filter(pl.col("prompt_id") == match["prompt_id"]).collect()
    completions = _completions(near, match, wanted)
    if prompts.height == 0 or (match["iteration"] and completions.height == 0):
        kind = "completion" if match["index"] else "group" if match["iteration"] else "prompt"
        problem = f"there is no such {kind} in {', '.join(tables.names)}"
        raise BadInput(
            f"id {wanted}", problem, "Name another run with --run; `rollbook grep` finds completions by text"
        )
    own = completions.lazy().select("run", "group_id").unique()
    groups = rows_so_far(near, "groups").join(own, ["run", "group_id"], "semi")
    return Life(
        prompts.to_dicts()[-1],
        groups.sort("group_id").collect().to_dicts(),
        completions.sort("completion_id").to_dicts(),
    )


def token_table(tables: Tables, completion_id: str) -> pl.DataFrame:
    """A row per token of the completion: position, id, and its log-probabilities in nats.

    Those of the trainer and the reference are null where the completion was not trained on.
    """
    near = _of_one_iteration(tables, completion_id.partition("/")[0], completion_id)
    rows = near["rollouts"].filter(pl.col("completion_id") == completion_id)
    trained = rows_so_far(near, "token_logprobs").select("run", "completion_id", old="old_logprobs", ref="ref_logprobs")
    lists = rows.select("run", "completion_id", token_id="completion_token_ids", sampling="sampling_logprobs")
    joined = (
        lists.join(trained, on=["run", "completion_id"], how="left")
        .select("token_id", "sampling", "old", "ref")
        .collect()
    )
    columns = {name: joined[name].explode() for name in joined.columns if joined[name].null_count() == 0}
    tokens = pl.DataFrame(columns).with_row_index("position")
    missing = [pl.lit(None, pl.Float32).alias(name) for name in ("old", "ref") if name not in columns]
    return tokens.with_columns(missing).select(
        *("position", "token_id", "sampling", "old", "ref"), old_minus_sampling=pl.col("old") - pl.col("sampling")
    )


def _of_one_iteration(tables: Tables, iteration: str | None, wanted: str) -> Tables:
    if len(tables.names) != 1:
        raise BadInput(f"id {wanted}", f"it is looked up in one run, not in {', '.join(tables.names)}", "Name one")
    if iteration is None:
        return tables
    found = {"run": list(tables.names), "iteration": [int(iteration)]}
    return tables.of_iterations(pl.DataFrame(found, schema_overrides={"iteration": pl.UInt32}))


def _completions(tables: Tables, match: re.Match[str], wanted: str) -> pl.DataFrame:
    key = "completion_id" if match["index"] else "group_id" if match["iteration"] else "prompt_id"
    is_wanted = pl.col(key) == wanted
    on = ["run", "completion_id"]
    rows = brief_rollouts(tables).filter(is_wanted)
    own = ["run", "iteration", "prompt_id", "group_id"]
    later = {name: rows_so_far(tables, name) for name in ("rewards", "advantages", "training_set", "token_logprobs")}
    rewards = later["rewards"].filter(is_wanted).drop("iteration", "prompt_id", "group_id")
    advantages = later["advantages"].filter(is_wanted).select(*on, "advantage")
    trained = later["training_set"].select(*on, is_trained=pl.lit(True))
    steps = later["token_logprobs"].select(*on, "steps")
    for other in (rewards.with_columns(is_scored=pl.lit(True)), advantages, trained, steps):
        rows = rows.join(other, on=on, how="left")
    filtered = rows_so_far(tables, "groups").select("run", "group_id", is_filtered=pl.lit(True))
    rows = rows.join(filtered, on=["run", "group_id"], how="left")
    known = pl.col("is_scored", "is_filtered", "is_trained").fill_null(False)
    return rows.with_columns(known).select(*own, pl.exclude(own)).collect()
