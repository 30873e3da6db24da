"""What a rule of the diagnosis says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pipeline.metrics import finite
from pipeline.params import OnHealth

Level = Literal["ok", "watch", "warn"]
LEVELS: tuple[Level, ...] = ("ok", "watch", "warn")
"""From best to worst."""


@dataclass(frozen=True)
class Rows:
    """The rows behind a finding: the command that lists them all, how many there are, and the first of them.

    `ids` name a completion, a group, an optimizer step (`step 12`), an iteration (`iteration 3`) or a metric. Where the
    rule holds, they are not looked for.
    """

    query: str
    n: int = 0
    ids: tuple[str, ...] = ()


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
    rows: Rows | None = None

    @property
    def counts(self) -> bool:
        """Whether it is a warning that params.yaml doesn't ignore."""
        return self.level == "warn" and self.action != "ignore"

    @property
    def is_ok(self) -> bool:
        """Whether the rule holds, or params.yaml ignores it."""
        return self.level == "ok" or self.action == "ignore"


@dataclass(frozen=True)
class Limit:
    """Where a number becomes a warning: above `warn`, or below it with `is_lower`; from `watch` on it is watched."""

    warn: float
    watch: float | None = None
    is_lower: bool = False

    def level(self, number: float) -> Level:
        """What `number` is.

        >>> Limit(0.1, watch=0.01).level(0.02), Limit(0.3, is_lower=True).level(0.2)
        ('watch', 'warn')
        """
        if self._is_beyond(number, self.warn):
            return "warn"
        return "watch" if self.watch is not None and self._is_beyond(number, self.watch) else "ok"

    def _is_beyond(self, number: float, bound: float) -> bool:
        return number < bound if self.is_lower else number > bound


def bounded(rule: str, name: str, value: Any, limit: Limit, advice: str) -> Finding:
    """The finding of a rule that holds a number against a limit.

    A string as `value` says in words why there is none; then the rule holds. A number that is not finite breaks it.

    >>> bounded("kl_bounded", "KL", 0.5, Limit(0.3), "Go slower").message
    'KL is 0.5, above 0.3'
    """
    if isinstance(value, str):
        return Finding(rule, "ok", None, limit.warn, f"{name} is not judged: {value}")
    number = finite(value)
    if number is None:
        return Finding(rule, "warn", None, limit.warn, f"{name} is not a finite number", advice)
    level = limit.level(number)
    bound = limit.watch if level == "watch" and limit.watch is not None else limit.warn
    if level == "ok":
        side = "at least" if limit.is_lower else "at most"
        return Finding(rule, "ok", number, limit.warn, f"{name} is {number:.4g}, {side} {limit.warn:g}")
    side = "below" if limit.is_lower else "above"
    return Finding(rule, level, number, bound, f"{name} is {number:.4g}, {side} {bound:g}", advice)


def holds(rule: str, threshold: float, message: str, value: float | None = None) -> Finding:
    """The finding of a rule that is kept, or that has nothing to judge."""
    return Finding(rule, "ok", value, threshold, message)
