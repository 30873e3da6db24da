"""The diagnosis of an iteration: rules over its metrics, each with a verdict, the number behind it, and advice.

A rule that is broken warns. What follows is up to params.yaml (`report.on_health`): training stops, goes on, or the
warning doesn't even count. A number that an iteration doesn't have (no optimizer step, no reference, no
earlier iteration) is no warning; the message says why it isn't there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.history_rows import HistoryRow, row_before
from pipeline.metrics import Metrics, finite
from pipeline.params import OnHealth, ReportParams

Level = Literal["ok", "warn"]


@dataclass(frozen=True)
class Finding:
    """What one rule says: `value` against `threshold`, in words, and what to do about it.

    `action` is what follows where the level is not "ok".
    """

    rule: str
    level: Level
    value: float | int | None
    threshold: float | int | None
    message: str
    advice: str = ""
    action: OnHealth = "warn"

    @property
    def counts(self) -> bool:
        """Whether it is a warning that params.yaml doesn't ignore."""
        return self.level == "warn" and self.action != "ignore"


def diagnose(iteration: int, metrics: Metrics, history: list[HistoryRow], params: ReportParams) -> list[Finding]:
    """One finding per rule, in the order of the rules.

    `history` holds the rows of the iterations before `iteration`; rows of `iteration` and later are not looked at.
    """
    limits = params.health
    findings = [
        group_kept(metrics),
        numbers_finite(metrics),
        kl_bounded(metrics, limits.max_kl),
        clipping_bounded(metrics, limits.max_clip_fraction),
        pass_rate_held(metrics, row_before(history, iteration), limits.max_pass_rate_drop),
    ]
    return [dataclasses.replace(finding, action=getattr(params.on_health, finding.rule)) for finding in findings]


def overall_level(findings: list[Finding]) -> Level:
    """The worst level among the `findings` that count."""
    return "warn" if any(finding.counts for finding in findings) else "ok"


def as_json(iteration: int, findings: list[Finding]) -> dict[str, Any]:
    """What `data/health.json` holds."""
    return {
        "iteration": iteration,
        "level": overall_level(findings),
        "n_warnings": sum(finding.counts for finding in findings),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }


def group_kept(metrics: Metrics) -> Finding:
    """Warns where no group is kept: nothing is trained on, and the policy stays as it was."""
    n_groups, n_kept = metrics["filter"]["n_groups"], metrics["filter"]["n_kept"]
    if n_kept > 0 and metrics["update"]["n_steps"] == 0:
        message = f"{n_kept} of {n_groups} groups are kept, but all their completions are cut off and left out"
        advice = "Raise sampling.max_completion_tokens, or set training.mask_truncated to false"
        return Finding("group_kept", "warn", n_kept, 1, message, advice)
    if n_kept > 0:
        return Finding("group_kept", "ok", n_kept, 1, f"{n_kept} of {n_groups} groups are kept")
    outcomes: dict[str, int] = metrics["filter"]["outcomes"]
    common = max(outcomes, key=lambda outcome: outcomes[outcome], default="unscorable")
    message = f"none of the {n_groups} groups is kept, so the policy is unchanged; most are {common}"
    return Finding("group_kept", "warn", 0, 1, message, _GROUP_ADVICE[common])


_GROUP_ADVICE = {
    "all_correct": "Give it harder prompts",
    "all_wrong": "Give it easier prompts or a larger rollout.group_size; read some completions below first, since an "
    "answer in another form than the verifier looks for is wrong too",
    "mixed": "Their rewards are equal although the verdicts differ: give the correct term a weight in score.terms",
    "unscorable": "See score_error in data/rewards.parquet",
    "unverified": "All rewards of each group are equal: see the terms in data/rewards.parquet",
}


def kl_bounded(metrics: Metrics, max_kl: float) -> Finding:
    """Warns where the mean KL to the reference is above `max_kl`, nats per token."""
    return _bounded(
        "kl_bounded",
        "KL to the reference",
        _step_mean(metrics, "kl", "no reference is loaded"),
        max_kl,
        "Lower training.learning_rate, or raise training.kl_coefficient",
    )


def clipping_bounded(metrics: Metrics, max_clip_fraction: float) -> Finding:
    """Warns where more than `max_clip_fraction` of the tokens are clipped.

    Judged only with more than one optimizer step on the rollouts: in the first the policy is the one that sampled
    them, so every ratio is 1.
    """
    value = _step_mean(metrics, "clip_fraction", "it was not measured")
    if metrics["update"]["n_steps"] == 1 and finite(value) is not None:
        value = "a single optimizer step has every ratio at 1"
    advice = "Take fewer steps per rollout (training.epochs, training.minibatches), or lower training.learning_rate"
    return _bounded("clipping_bounded", "clip fraction", value, max_clip_fraction, advice)


def _step_mean(metrics: Metrics, key: str, why_null: str) -> Any:
    """A mean over the optimizer steps, or in words why there is none."""
    if metrics["update"]["n_steps"] == 0:
        return "no optimizer step was taken"
    return why_null if metrics["update"][key] is None else metrics["update"][key]


def _bounded(rule: str, name: str, value: Any, limit: float, advice: str) -> Finding:
    if isinstance(value, str):
        return Finding(rule, "ok", None, limit, f"{name} is not judged: {value}")
    number = finite(value)
    if number is None:
        return Finding(rule, "warn", None, limit, f"{name} is not a finite number", advice)
    if number > limit:
        return Finding(rule, "warn", number, limit, f"{name} is {number:.4g}, above {limit:g}", advice)
    return Finding(rule, "ok", number, limit, f"{name} is {number:.4g}, at most {limit:g}")


def pass_rate_held(metrics: Metrics, before: HistoryRow | None, max_drop: float) -> Finding:
    """Warns where the pass rate lost at least the fraction `max_drop` of what it was in the iteration before.

    A fall from 0.4 to 0.2 is a drop of 0.5.
    """
    now, then = finite(metrics["score"]["pass_rate"]), before and before["pass_rate"]
    if now is None or not then:
        reason = "this iteration has none" if now is None else "there is no earlier pass rate above 0 to compare with"
        return Finding("pass_rate_held", "ok", None, max_drop, f"pass rate is not compared: {reason}")
    drop = 1 - now / then
    # Halves such as 0.3 to 0.15 must not miss the limit by a rounding error.
    has_fallen = drop > 0 and drop >= max_drop - 1e-12
    change = f"pass rate went from {then:.4g} to {now:.4g}"
    if not has_fallen:
        return Finding("pass_rate_held", "ok", max(drop, 0.0), max_drop, change)
    advice = "Look at what changed in the completions below; go on from the parent with a lower learning rate"
    return Finding("pass_rate_held", "warn", drop, max_drop, f"{change}, a fall of {drop:.0%}", advice)


def numbers_finite(metrics: Metrics) -> Finding:
    """Warns where a metric is NaN or infinite, or null although the iteration should have it."""
    bad = [name for name, value in _leaves(metrics) if _is_bad(name, value, metrics)]
    if not bad:
        return Finding("numbers_finite", "ok", 0, 0, "every number is finite, and none is missing")
    shown = ", ".join(bad[:5]) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
    message = f"not a finite number, or null where one is due: {shown}"
    advice = "See the file data/metrics/<stage>.json and the table that the stage writes"
    return Finding("numbers_finite", "warn", len(bad), 0, message, advice)


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
        return metrics["update"]["n_steps"] == 0 or key == "kl"  # no KL where no reference is loaded
    if name == "evaluate.after":
        return not metrics["evaluate"]["is_scheduled"]
    if name == "score.pass_rate" or stage == "evaluate":
        # `before` belongs to the iteration that starts from the base model.
        return name == "evaluate.before" or _is_unverified(metrics)
    return name == "start.parent"


def _is_unverified(metrics: Metrics) -> bool:
    """Whether no group has a verdict, as where a reward model alone gives the reward; some may be unscorable."""
    outcomes: dict[str, int] = metrics["filter"]["outcomes"]
    n_groups: int = metrics["filter"]["n_groups"]
    n_unverified, n_unscorable = outcomes.get("unverified", 0), outcomes.get("unscorable", 0)
    return n_unverified > 0 and n_unverified + n_unscorable == n_groups
