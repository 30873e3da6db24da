"""Rules on the sampler and the trainer, which should give a token the same probability.

`sampling_kl_bounded` is the mean of the k3 estimator. `logprobs_agree` is the `token_mult_prob_error` of NeMo-RL (its
guide on GRPO: below 1.05 is fine). `weights_effective` is verl's effective sample size of the importance weights
exp(old - sampling), (sum w)^2 / (n sum w^2), here over tokens.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import polars as pl

from pipeline.health.evidence import N_IDS, Evidence, point_at
from pipeline.health.finding import Finding, Limit, Rows, bounded
from pipeline.health.update_rules import step_mean
from pipeline.params import HealthParams

ADVICE = (
    "The trainer gives the sampled tokens other probabilities than the sampler: the same weights, temperature, chat "
    "template and dtype? training.sampling_correction weighs the difference"
)


def sampling_kl_bounded(evidence: Evidence, limits: HealthParams) -> Finding:
    """Watches a KL of sampler to trainer above `watch_sampling_kl`, warns above `max_sampling_kl`; nats per token."""
    value = step_mean(evidence, "sampling_kl", "it was not measured")
    limit = Limit(limits.max_sampling_kl, watch=limits.watch_sampling_kl)
    finding = bounded("sampling_kl_bounded", "KL of sampler to trainer", value, limit, ADVICE)
    query = (
        f"select step, sampling_kl from train_steps where iteration = {evidence.iteration}"
        f" and sampling_kl > {limits.watch_sampling_kl:g} order by sampling_kl desc"
    )
    return point_at(finding, evidence, query, "step")


def logprobs_agree(evidence: Evidence, limits: HealthParams) -> Finding:
    """Warns where the mean of exp(|old - sampling|) over the trained tokens is above `max_probability_ratio`."""
    value = _over_tokens(evidence, lambda total: total("ratio") / total("n"))
    limit = Limit(limits.max_probability_ratio)
    finding = bounded("logprobs_agree", "ratio of sampler's and trainer's probabilities", value, limit, ADVICE)
    return _worst_completions(finding, evidence)


def weights_effective(evidence: Evidence, limits: HealthParams) -> Finding:
    """Warns where the effective sample size of exp(old - sampling) is below `min_effective_fraction` of the tokens."""
    value = _over_tokens(evidence, lambda total: total("weight") ** 2 / (total("square") * total("n")))
    limit = Limit(limits.min_effective_fraction, is_lower=True)
    finding = bounded("weights_effective", "effective fraction of the trained tokens", value, limit, ADVICE)
    return _worst_completions(finding, evidence)


def _over_tokens(evidence: Evidence, statistic: Callable[[Callable[[str], float]], float]) -> Any:
    """`statistic` of the sums of columns, which must not depend on the order of the rows: they come in any."""
    columns = evidence.mismatch
    return statistic(lambda name: math.fsum(columns[name])) if columns["n"].sum() else "no token was trained on"


def _worst_completions(finding: Finding, evidence: Evidence) -> Finding:
    rows = Rows("rollbook audit token_mismatch")
    if finding.level != "ok":
        worst = evidence.mismatch.select("completion_id", mean=pl.col("ratio") / pl.col("n"))
        found = worst.sort("mean", "completion_id", descending=[True, False])["completion_id"]
        rows = dataclasses.replace(rows, n=found.len(), ids=tuple(found.head(N_IDS)))
    return dataclasses.replace(finding, rows=rows)
