"""Rules of what was selected and rolled out: ids, groups, seeds, lengths."""

from __future__ import annotations

import polars as pl

from pipeline.integrity.evidence import TABLE_FILES, Evidence
from pipeline.integrity.rules import Rule, above_zero, breaks, compare, same_keys
from pipeline.seeds import stable_seed
from pipeline.tables import Table


def _iteration_rule(name: str, table: Table) -> Rule:
    def find(evidence: Evidence) -> pl.LazyFrame:
        number = evidence.params.iteration
        why = pl.format("its iteration is {}, and params.yaml says {}", "iteration", pl.lit(number))
        key = pl.concat_str([pl.col(column).cast(pl.String) for column in table.key], separator=" ").alias("key")
        return evidence[name].filter(pl.col("iteration") != number).select(key, why=why)

    return Rule("iteration", name, (name,), find)


def find_ids_that_do_not_fit(evidence: Evidence) -> pl.LazyFrame:
    """Completions whose ids are not made of each other."""
    group = pl.format("{}/{}", pl.col("iteration").cast(pl.String).str.zfill(4), "prompt_id")
    completion = pl.format("{}/{}", "group_id", "completion_index")
    is_bad = (pl.col("group_id") != group) | (pl.col("completion_id") != completion)
    why = pl.format("it has group_id {}, prompt_id {} and index {}", "group_id", "prompt_id", "completion_index")
    return breaks(evidence["rollouts"], "completion_id", is_bad, why)


def find_broken_groups(evidence: Evidence) -> pl.LazyFrame:
    """Groups that are not `rollout.group_size` completions, numbered from 0."""
    size = evidence.params.rollout.group_size
    index = pl.col("completion_index")
    groups = evidence["rollouts"].group_by("group_id").agg(n=pl.len(), n_indices=index.n_unique(), last=index.max())
    is_bad = (pl.col("n") != size) | (pl.col("n_indices") != size) | (pl.col("last") != size - 1)
    why = pl.format(
        "it has {} completions, the last numbered {}, and rollout.group_size is {}", "n", "last", pl.lit(size)
    )
    return breaks(groups, "group_id", is_bad, why)


def find_unselected(evidence: Evidence) -> pl.LazyFrame:
    """Prompts that are selected and not rolled out, or the other way round."""
    return same_keys(evidence["rollouts"], evidence["selection"], "prompt_id", "the selected prompts")


def find_gaps_in_selection(evidence: Evidence) -> pl.LazyFrame:
    """Places of the selection that are not 0 to `select.n_prompts` x `rollout.oversample` less one."""
    n_prompts = evidence.params.rollout.count_groups(evidence.params.select.n_prompts)
    places = pl.LazyFrame({"position": range(n_prompts)}, schema={"position": pl.UInt32})
    return same_keys(evidence["selection"], places, "position", f"the {n_prompts} places of select.n_prompts")


def find_unknown_prompts(evidence: Evidence) -> pl.LazyFrame:
    """Selected prompts that don't exist, or are held out."""
    train = evidence["prompts"].filter(pl.col("split") == "train").select("prompt_id")
    unknown = evidence["selection"].join(train, on="prompt_id", how="anti")
    return unknown.select("prompt_id", why=pl.lit("it is no train prompt of data/prompts.parquet"))


def find_held_in_prompts(evidence: Evidence) -> pl.LazyFrame:
    """Evaluated prompts that don't exist, or are trained on."""
    held_out = evidence["prompts"].filter(pl.col("split") == "eval").select("prompt_id")
    unknown = evidence["eval"].join(held_out, on="prompt_id", how="anti").select("prompt_id").unique()
    return unknown.select("prompt_id", why=pl.lit("it is no eval prompt of data/prompts.parquet"))


def find_gaps_in_evaluation(evidence: Evidence) -> pl.LazyFrame:
    """Policies that were evaluated on other completions than params.yaml says: so many, numbered from 0 by prompt."""
    params = evidence.params.evaluate
    wanted = params.n_prompts * params.n_completions
    policy = pl.col("policy").cast(pl.String)
    counts = evidence["eval"].group_by(policy).agg(n=pl.len(), last=pl.col("completion_index").max())
    why = pl.format(
        "it has {} completions, the last of a prompt numbered {}; params.yaml says {} and {}",
        *("n", "last", pl.lit(wanted), pl.lit(params.n_completions - 1)),
    )
    return breaks(counts, "policy", (pl.col("n") != wanted) | (pl.col("last") != params.n_completions - 1), why)


def find_other_seeds(evidence: Evidence) -> pl.LazyFrame:
    """Completions whose seed is not the hash of the run's seed, iteration, prompt and index.

    Of an engine that is seeded by the shard, completions whose seed is not that of their group, which no shard divides.
    """
    params = evidence.params
    if evidence.rollout_metadata().get("seed_scope") == "shard":
        held = pl.col("seed").first().over("group_id", order_by="completion_index")
        seeded = evidence["rollouts"].with_columns(held=held)
        why = pl.format("its seed is {}, and that of its group is {}", "seed", "held")
        return breaks(seeded, "completion_id", pl.col("seed") != pl.col("held"), why)
    rows = evidence["rollouts"].select("completion_id", "prompt_id", "completion_index", "seed")

    def seeds(ids: pl.Series) -> pl.Series:
        values = [stable_seed(params.seed, params.iteration, *key.values()) for key in ids]
        return pl.Series(values, dtype=pl.Int64)

    key = pl.struct("prompt_id", "completion_index")
    expected = rows.select("completion_id", seed=key.map_batches(seeds, return_dtype=pl.Int64, is_elementwise=True))
    return compare(rows, expected, "completion_id", exact=["seed"])


def find_wrong_ends(evidence: Evidence) -> pl.LazyFrame:
    """Completions that are longer than the limit, or said to be cut by it at another length."""
    limit = evidence.params.sampling.max_completion_tokens
    n, reason = pl.col("completion_token_ids").list.len(), pl.col("finish_reason")
    is_bad = (n > limit) | ((reason == "length") & (n != limit))
    why = pl.format(
        "it has {} tokens and finish_reason {}, and the limit is {}", n, reason.cast(pl.String), pl.lit(limit)
    )
    return breaks(evidence["rollouts"], "completion_id", is_bad, why)


def find_impossible_logprobs(evidence: Evidence) -> pl.LazyFrame:
    """Completions with a sampling log-probability above 0."""
    return above_zero(evidence["rollouts"], "sampling_logprobs")


def find_other_temperature(evidence: Evidence) -> pl.LazyFrame:
    """The temperature that the sampler noted, where params.yaml has another."""
    noted, wanted = evidence.rollout_metadata().get("temperature"), repr(evidence.params.sampling.temperature)
    row = pl.LazyFrame({"temperature": [noted or "none"]})
    return breaks(row, "temperature", pl.lit(noted != wanted), pl.lit(f"params.yaml says {wanted}"))


RULES = (
    *(_iteration_rule(name, table) for name, (_, table) in TABLE_FILES.items() if "iteration" in table.schema),
    Rule("prompts_exist", "selection", ("selection", "prompts"), find_unknown_prompts),
    Rule("selection_is_whole", "selection", ("selection",), find_gaps_in_selection),
    Rule("ids_fit", "rollouts", ("rollouts",), find_ids_that_do_not_fit),
    Rule("groups_are_whole", "rollouts", ("rollouts",), find_broken_groups),
    Rule("selected_is_rolled_out", "rollouts", ("rollouts", "selection"), find_unselected),
    Rule("seeds_are_hashes", "rollouts", ("rollouts",), find_other_seeds),
    Rule("ends_fit_lengths", "rollouts", ("rollouts",), find_wrong_ends),
    Rule("logprobs_are_negative", "rollouts", ("rollouts",), find_impossible_logprobs),
    Rule("temperature_is_noted", "rollouts", ("rollouts",), find_other_temperature),
    Rule("held_out_is_held_out", "eval", ("eval", "prompts"), find_held_in_prompts),
    Rule("evaluation_is_whole", "eval", ("eval",), find_gaps_in_evaluation),
)
