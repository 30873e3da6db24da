"""Rules on the course of a run: a window of its last iterations beside the window before.

A window is `trend.n_iterations` long, so that the noise of a single iteration doesn't look like a trend.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from statistics import fmean, stdev

from pipeline.health.evidence import N_IDS, Evidence, sql_command
from pipeline.health.finding import Finding, Rows, holds
from pipeline.history_rows import HistoryRow
from pipeline.params import HealthParams

STEADY_FRACTION = 0.1
"""Of the early mean length: a smaller spread counts as this one, since a limit on the length leaves next to none."""


@dataclass(frozen=True)
class Change:
    """The mean of a column in the window before, and in the last one."""

    then: float
    now: float

    @property
    def difference(self) -> float:
        return self.now - self.then

    @property
    def growth(self) -> float | None:
        """How many times `then` is `now`; None where there was nothing to grow."""
        return self.now / self.then if self.then > 0 else None


def length_steady(evidence: Evidence, limits: HealthParams) -> Finding:
    """Warns where the mean length is `max_length_drift` standard deviations away from that of the early iterations.

    The early ones are the first `trend.n_iterations` of the run.
    """
    name, limit = "length_steady", limits.max_length_drift
    lengths = _column(evidence.rows, "completion_tokens_mean")
    n = limits.trend.n_iterations
    if len(lengths) <= n:
        return holds(name, limit, f"length is not compared: the run has no {n} earlier iterations")
    early, now = lengths[:n], lengths[-1]
    mean = fmean(early)
    drift = (now - mean) / max(stdev(early), STEADY_FRACTION * mean)
    message = f"mean length is {now:.4g} tokens, {drift:+.2g} standard deviations from the first {n} iterations"
    if abs(drift) <= limit:
        return holds(name, limit, message, abs(drift))
    advice = "Read some of the longest and shortest completions: does length pay, or does the policy give up early?"
    finding = Finding(name, "warn", abs(drift), limit, message, advice)
    tokens = "avg(array_length(completion_token_ids)) as tokens"
    return _over_iterations(finding, evidence, n, _means("rollouts", tokens))


def kl_keeps_pace(evidence: Evidence, limits: HealthParams) -> Finding:
    """Warns where the pass rate rises while the KL jumps: the policy drifts away and the reward likes it.

    The KL jumps where its mean grew to `trend.min_kl_growth` times that of the window before, and is past half of
    `max_kl`: near 0, where every run begins, it doubles in no time.
    """
    name, limit = "kl_keeps_pace", limits.trend.min_kl_growth
    kl, passed = (_change(evidence, column, limits.trend.n_iterations) for column in ("kl", "pass_rate"))
    if kl is None or passed is None or kl.growth is None:
        return holds(name, limit, _too_short("KL and pass rate", limits))
    message = f"KL went from {kl.then:.4g} to {kl.now:.4g}, pass rate from {passed.then:.3f} to {passed.now:.3f}"
    is_jump = kl.growth > limit and kl.now > limits.max_kl / 2
    if not (is_jump and passed.difference > limits.trend.min_pass_rate_change):
        return holds(name, limit, message, kl.growth)
    advice = "The policy moves away from the reference fast: read what is rewarded now, raise training.kl_coefficient"
    finding = Finding(name, "warn", kl.growth, limit, f"{message}: it drifts", advice)
    return _over_iterations(finding, evidence, limits.trend.n_iterations, _means("train_steps", "avg(kl) as kl"))


def training_moves(evidence: Evidence, limits: HealthParams) -> Finding:
    """Warns where neither KL nor pass rate moves: a coefficient too high, a rate too low, or prompts too hard.

    The KL is flat within `trend.max_flat_kl_change` of what it was. Judged where there is something left to learn, at
    a pass rate below `max_ceiling_fraction`.
    """
    name, limit = "training_moves", limits.trend.max_flat_kl_change
    kl, passed = (_change(evidence, column, limits.trend.n_iterations) for column in ("kl", "pass_rate"))
    if kl is None or passed is None or kl.growth is None:
        return holds(name, limit, _too_short("KL and pass rate", limits))
    moved = abs(kl.growth - 1)
    message = f"KL changed by {moved:.1%}, pass rate from {passed.then:.3f} to {passed.now:.3f}"
    is_stuck = moved < limit and abs(passed.difference) < limits.trend.min_pass_rate_change
    if not is_stuck or passed.now >= limits.max_ceiling_fraction:
        return holds(name, limit, message, moved)
    advice = "Lower training.kl_coefficient, raise training.learning_rate, or give it easier prompts"
    finding = Finding(name, "warn", moved, limit, f"{message}: it is stuck", advice)
    return _over_iterations(finding, evidence, limits.trend.n_iterations, _means("train_steps", "avg(kl) as kl"))


def length_earns(evidence: Evidence, limits: HealthParams) -> Finding:
    """Warns where completions get longer by the fraction `trend.min_length_growth` and pass no more often for it."""
    name, limit = "length_earns", limits.trend.min_length_growth
    length = _change(evidence, "completion_tokens_mean", limits.trend.n_iterations)
    passed = _change(evidence, "pass_rate", limits.trend.n_iterations)
    if length is None or passed is None or length.growth is None:
        return holds(name, limit, _too_short("length and pass rate", limits))
    message = (
        f"mean length went from {length.then:.4g} to {length.now:.4g} tokens, "
        f"pass rate from {passed.then:.3f} to {passed.now:.3f}"
    )
    grown = length.growth - 1
    if grown <= limit or passed.difference > limits.trend.min_pass_rate_change:
        return holds(name, limit, message, max(grown, 0.0))
    advice = "Does the reward pay for words? Compare length and reward within groups; try loss dr_grpo or a length term"
    finding = Finding(name, "warn", grown, limit, f"{message}: words without a gain", advice)
    return _over_iterations(finding, evidence, limits.trend.n_iterations, "length")


def held_out_follows(evidence: Evidence, limits: HealthParams) -> Finding:
    """Warns where the held-out pass@1 fell by more than `trend.max_held_out_fall` while the pass rate rose.

    Judged where an evaluation is due. The window before ends at the last evaluation that is not in this one, since
    most iterations evaluate nothing.
    """
    name, limit, n = "held_out_follows", limits.trend.max_held_out_fall, limits.trend.n_iterations
    rows = evidence.rows
    last = max((k for k in range(len(rows) - n) if rows[k]["eval_pass_at_1"] is not None), default=None)
    if last is None or rows[-1]["eval_pass_at_1"] is None:
        return holds(name, limit, "held-out pass@1 is not compared: none is measured here, or none was before")
    windows = rows[max(last + 1 - n, 0) : last + 1], rows[-n:]
    held_out, training = ([_column(window, column) for window in windows] for column in ("eval_pass_at_1", "pass_rate"))
    if not all(training):
        return holds(name, limit, "held-out pass@1 is not compared: no completion has a verdict")
    held_out_change, passed = (Change(fmean(then), fmean(now)) for then, now in (held_out, training))
    message = (
        f"held-out pass@1 went from {held_out_change.then:.3f} to {held_out_change.now:.3f}, "
        f"training pass rate from {passed.then:.3f} to {passed.now:.3f}"
    )
    fall = -held_out_change.difference
    if fall <= limit or passed.difference <= 0:
        return holds(name, limit, message, max(fall, 0.0))
    advice = "The policy learns what the training prompts reward, not the task: read the best completions for a hack"
    finding = Finding(name, "warn", fall, limit, f"{message}: likely a hack", advice)
    return _over_iterations(finding, evidence, n, "held_out")


def _change(evidence: Evidence, column: str, n: int) -> Change | None:
    """The mean of `column` in the last `n` iterations beside the `n` before; None where some of these have none."""
    values = _column(evidence.rows[-2 * n :], column)
    return Change(fmean(values[:n]), fmean(values[n:])) if len(values) == 2 * n else None


def _column(rows: list[HistoryRow], name: str) -> list[float]:
    """What is not null."""
    return [value for row in rows if (value := row[name]) is not None]


def _too_short(what: str, limits: HealthParams) -> str:
    return f"{what} are not compared: that takes {2 * limits.trend.n_iterations} iterations that have both"


def _over_iterations(finding: Finding, evidence: Evidence, n: int, question: str) -> Finding:
    """`finding` with the last `n` iterations as the rows behind it; `question` is a named one, or SQL.

    It is asked of these iterations and the `n` before.
    """
    span = (max(evidence.iteration - 2 * n + 1, 0), evidence.iteration)
    named = f"rollbook audit --iterations {span[0]}..{span[1]} {question}"
    query = sql_command(question, span) if question.startswith("select ") else named
    ids = tuple(f"iteration {row['iteration']}" for row in evidence.rows[-n:])
    return dataclasses.replace(finding, rows=Rows(query, len(ids), ids[-N_IDS:]))


def _means(table: str, mean: str) -> str:
    return f"select iteration, {mean} from {table} group by iteration order by iteration"
