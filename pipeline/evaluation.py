"""Held-out evaluation: pass@k and its interval.

Source: pass@k is the unbiased estimator of Chen et al. (arXiv 2107.03374, equation 1). The interval of pass@1 is
Wilson's (1927) with one completion per prompt; with several, completions of a prompt are not independent, so it is
the normal interval of the mean over prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import polars as pl

Z_95 = 1.959964
"""The standard normal's 0.975 quantile: intervals are at 95%."""


def pass_at_k(n: int, n_correct: int, k: int) -> float:
    """The chance that at least one of `k` completions, drawn from `n` of which `n_correct` are correct, is correct.

    >>> round(pass_at_k(8, 3, 4), 6)
    0.928571
    >>> pass_at_k(4, 1, 4)
    1.0
    """
    if not 0 <= n_correct <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {n} completions, {n_correct} of them correct, is not defined")
    return 1.0 - math.comb(n - n_correct, k) / math.comb(n, k)


def wilson_interval(n_correct: float, n: int) -> tuple[float, float]:
    """Wilson's 95% interval of a proportion; it holds the proportion itself, rounding or not.

    >>> [round(bound, 4) for bound in wilson_interval(8, 10)]
    [0.4902, 0.9433]
    """
    rate, z2 = n_correct / n, Z_95**2
    center = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 / (1 + z2 / n) * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n))
    return max(0.0, min(rate, center - half)), min(1.0, max(rate, center + half))


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The normal 95% interval of the mean of `values`, cut to [0, 1]; with a single value it is all of [0, 1].

    >>> [round(bound, 4) for bound in mean_interval([0.5, 1.0, 0.0, 0.5])]
    [0.0999, 0.9001]
    """
    n = len(values)
    if n < 2:
        return 0.0, 1.0
    mean = math.fsum(values) / n
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    if std == 0:  # all prompts alike say little of the next one: an interval of no width would say all
        return wilson_interval(mean * n, n)
    half = Z_95 * std / math.sqrt(n)
    return max(0.0, mean - half), min(1.0, mean + half)


def choose_eval_prompts(prompts: pl.DataFrame, n_prompts: int) -> pl.DataFrame:
    """The first `n_prompts` eval prompts by prompt_id, a hash: a fixed subset, and each one is part of any larger."""
    return prompts.filter(pl.col("split") == "eval").sort("prompt_id").head(n_prompts)


def evaluation_metrics(rows: pl.DataFrame, k_values: Sequence[int]) -> dict[str, Any]:
    """Metrics of one policy from its rows of the table `eval`.

    Completions without a verdict count in no pass@k; a prompt with fewer verdicts than k is left out of pass@k.
    """
    per_prompt = (
        rows.group_by("prompt_id")
        .agg(n=pl.col("is_correct").count(), n_correct=pl.col("is_correct").sum())
        .filter(pl.col("n") > 0)
        .sort("prompt_id")
    )
    counts = list(per_prompt.select("n", "n_correct").iter_rows())
    metrics: dict[str, Any] = {
        "pass_at_1": None,
        "pass_at_1_low": None,
        "pass_at_1_high": None,
        "pass_at_k": {str(k): _mean([pass_at_k(n, c, k) for n, c in counts if n >= k]) for k in k_values},
        "reward_mean": rows["reward"].mean(),
        "truncated_fraction": (rows["finish_reason"] == "length").mean(),
    }
    if counts:
        rates = [c / n for n, c in counts]
        is_single = all(n == 1 for n, _ in counts)
        low, high = wilson_interval(sum(c for _, c in counts), len(counts)) if is_single else mean_interval(rates)
        metrics |= {"pass_at_1": _mean(rates), "pass_at_1_low": low, "pass_at_1_high": high}
    return metrics


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
