"""Whether the numbers of an iteration are numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.health.evidence import N_IDS, Evidence
from pipeline.health.finding import Finding, Rows, holds
from pipeline.metrics import Metrics
from pipeline.params import HealthParams


def numbers_finite(evidence: Evidence, limits: HealthParams) -> Finding:
    """Warns where a metric is NaN or infinite, or null although the iteration should have it."""
    metrics = evidence.metrics
    bad = [name for name, value in _leaves(metrics) if _is_bad(name, value, metrics)]
    if not bad:
        return holds("numbers_finite", 0, "every number is finite, and none is missing", 0)
    shown = ", ".join(bad[:N_IDS]) + (f" and {len(bad) - N_IDS} more" if len(bad) > N_IDS else "")
    message = f"not a finite number, or null where one is due: {shown}"
    advice = "See the file data/metrics/<stage>.json and the table that the stage writes"
    rows = Rows(f"cat data/metrics/{bad[0].split('.')[0]}.json", len(bad), tuple(bad[:N_IDS]))
    return Finding("numbers_finite", "warn", len(bad), 0, message, advice, rows=rows)


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _is_bad(name: str, value: Any, metrics: Metrics) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    return value is None and not _may_be_null(name, metrics)


def _may_be_null(name: str, metrics: Metrics) -> bool:
    stage, key = name.split(".")[:2]
    if stage == "update":
        # No KL where no reference is loaded, and no memory of a GPU on a CPU.
        return metrics["update"]["n_steps"] == 0 or key in ("kl", "peak_gpu_memory_mb")
    if name == "evaluate.after":
        return not metrics["evaluate"]["is_scheduled"]
    if name == "score.pass_rate" or stage == "evaluate":
        # `before` belongs to the iteration that starts from the base model.
        return name == "evaluate.before" or _is_unverified(metrics)
    # Only code needs isolation, the groups may have no limit, and an optional term may find nothing to judge.
    unlimited = ("filter.target_groups", "filter.n_missing")
    return name in ("start.parent", "score.code_isolation", *unlimited) or name.startswith("score.term_means.")


def _is_unverified(metrics: Metrics) -> bool:
    """Whether no group has a verdict, as where a reward model alone gives the reward; some may be unscorable."""
    outcomes: dict[str, int] = metrics["filter"]["outcomes"]
    n_groups: int = metrics["filter"]["n_groups"]
    n_unverified, n_unscorable = outcomes.get("unverified", 0), outcomes.get("unscorable", 0)
    return n_unverified > 0 and n_unverified + n_unscorable == n_groups
