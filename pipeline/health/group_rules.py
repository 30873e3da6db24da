"""Rules on groups and rewards: whether there is something to learn from."""

from __future__ import annotations

import polars as pl

from pipeline.health.evidence import Evidence, point_at
from pipeline.health.finding import Finding, Limit, bounded, holds
from pipeline.history_rows import HistoryRow
from pipeline.metrics import finite
from pipeline.params import HealthParams
from pipeline.tables import SURPLUS


def group_kept(evidence: Evidence, limits: HealthParams) -> Finding:
    """Warns where no group is kept: nothing is trained on, and the policy stays as it was."""
    return point_at(_group_kept(evidence), evidence, _dropped(evidence))


def _group_kept(evidence: Evidence) -> Finding:
    metrics = evidence.metrics
    n_groups, n_kept = metrics["filter"]["n_groups"], metrics["filter"]["n_kept"]
    if n_kept > 0 and metrics["update"]["n_steps"] == 0:
        message = f"{n_kept} of {n_groups} groups are kept, but all their completions are cut off and left out"
        advice = "Raise sampling.max_completion_tokens, or set training.mask_truncated to false"
        return Finding("group_kept", "warn", n_kept, 1, message, advice)
    if n_kept > 0:
        n_surplus = metrics["filter"].get("n_surplus", 0)
        more = f", and {n_surplus} more were not needed" if n_surplus else ""
        return holds("group_kept", 1, f"{n_kept} of {n_groups} groups are kept{more}", n_kept)
    outcomes: dict[str, int] = metrics["filter"]["outcomes"]
    common = max(outcomes, key=lambda outcome: outcomes[outcome], default="unscorable")
    message = f"none of the {n_groups} groups is kept, so the policy is unchanged; most are {common}"
    return Finding("group_kept", "warn", 0, 1, message, _ADVICE[common])


_ADVICE = {
    "all_correct": "Give it harder prompts",
    "all_wrong": "Give it easier prompts or a larger rollout.group_size; read some completions below first, since an "
    "answer in another form than the verifier looks for is wrong too",
    "mixed": "Their rewards are equal although the verdicts differ: give the correct term a weight in score.terms",
    "unscorable": "See score_error in data/rewards.parquet",
    "unverified": "All rewards of each group are equal: see the terms in data/rewards.parquet",
}


def groups_teach(evidence: Evidence, limits: HealthParams) -> Finding:
    """Warns where more than `max_no_signal_fraction` of the groups are dropped, and with them their rollouts.

    Those that teach and are surplus don't count. Where all are dropped, `group_kept` says so.
    """
    counts = evidence.metrics["filter"]
    n_groups, outcomes = counts["n_groups"], counts["outcomes"]
    n_teaching = counts["n_kept"] + counts.get("n_surplus", 0)
    dropped = {outcome: n for outcome, n in outcomes.items() if outcome != "mixed"} or {"unscorable": 0}
    finding = bounded(
        "groups_teach",
        "fraction of groups without a signal",
        (n_groups - n_teaching) / n_groups if counts["n_kept"] else "no group is kept",
        Limit(limits.max_no_signal_fraction),
        _ADVICE[max(dropped, key=lambda outcome: dropped[outcome])],
    )
    return point_at(finding, evidence, _dropped(evidence))


def rewards_below_ceiling(evidence: Evidence, limits: HealthParams) -> Finding:
    """Warns where more than `max_ceiling_fraction` of the rewards are the highest one of the iteration.

    Judged where the highest reward is above 0: at the floor too all rewards are equal.
    """
    reward = pl.col("reward")
    found = evidence.tables["rewards"].select(top=reward.max(), share=(reward >= reward.max() - 1e-6).mean()).collect()
    top, share = found.row(0)
    value = "no reward is above 0" if top is None or top <= 0 else share
    advice = "The reward has little left to tell completions apart: give it harder prompts or a finer reward"
    finding = bounded(
        "rewards_below_ceiling", "fraction of rewards at the highest", value, Limit(limits.max_ceiling_fraction), advice
    )
    query = (
        f"select completion_id, reward from rewards where iteration = {evidence.iteration}"
        f" and reward > {(top or 0) - 1e-6:.6f} order by completion_id"
    )
    return point_at(finding, evidence, query)


def pass_rate_held(evidence: Evidence, limits: HealthParams) -> Finding:
    """Warns where the pass rate lost at least the fraction `max_pass_rate_drop` of what it was in the iteration before.

    A fall from 0.4 to 0.2 is a drop of 0.5.
    """
    before = evidence.history[-1] if evidence.history else None
    finding = _pass_rate_held(finite(evidence.metrics["score"]["pass_rate"]), before, limits.max_pass_rate_drop)
    query = (
        f"select group_id, n_correct, reason from groups where iteration = {evidence.iteration}"
        " and n_correct = 0 order by group_id"
    )
    return point_at(finding, evidence, query)


def _pass_rate_held(now: float | None, before: HistoryRow | None, max_drop: float) -> Finding:
    then = before and before["pass_rate"]
    if now is None or not then:
        reason = "this iteration has none" if now is None else "there is no earlier pass rate above 0 to compare with"
        return holds("pass_rate_held", max_drop, f"pass rate is not compared: {reason}")
    drop = 1 - now / then
    # Halves such as 0.3 to 0.15 must not miss the limit by a rounding error.
    has_fallen = drop > 0 and drop >= max_drop - 1e-12
    change = f"pass rate went from {then:.4g} to {now:.4g}"
    if not has_fallen:
        return holds("pass_rate_held", max_drop, change, max(drop, 0.0))
    advice = "Look at what changed in the completions below; go on from the parent with a lower learning rate"
    return Finding("pass_rate_held", "warn", drop, max_drop, f"{change}, a fall of {drop:.0%}", advice)


def _dropped(evidence: Evidence) -> str:
    return (
        f"select group_id, outcome, reason from groups where iteration = {evidence.iteration}"
        f" and not kept and not starts_with(reason, '{SURPLUS}') order by group_id"
    )
