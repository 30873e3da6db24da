"""The line that the terminal shows after each iteration."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pipeline.history_rows import HistoryRow

SHOWN = {"pass rate": "pass_rate", "held-out": "eval_pass_at_1", "reward": "reward_mean", "KL": "kl"}
"""Name -> column of data/history.csv."""

RECENT = 5


def iteration_line(name: str, row: HistoryRow, seconds: Sequence[float], n_left: int) -> str:
    """An iteration in one line: headline numbers, the time it took, and the time that `n_left` more will take.

    `seconds` are those of the iterations so far, this one last.

    >>> row = {"pass_rate": 0.4062, "eval_pass_at_1": 0.3333, "reward_mean": 0.4062, "kl": 0.0213}
    >>> iteration_line("demo/0003", row, [35.0, 39.0, 38.0], 36)
    'demo/0003: pass rate 0.41, held-out 0.33, reward 0.41, KL 0.021, 38 s, 23 min left'
    """
    numbers = [f"{label} {_short(value)}" for label, column in SHOWN.items() if (value := row.get(column)) is not None]
    left = [f"{duration(seconds_left(seconds, n_left))} left"] if n_left else []
    return f"{name}: " + ", ".join([*numbers, duration(seconds[-1]), *left])


def seconds_left(seconds: Sequence[float], n_left: int) -> float:
    """How long `n_left` more iterations will take, from the last few: the first also makes prompts and base model.

    >>> seconds_left([90.0, 20.0, 21.0, 19.0], 10)
    205.0
    """
    return median(seconds[-RECENT:]) * n_left


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best.

    >>> duration(38.2), duration(1380), duration(4 * 3600 + 900)
    ('38 s', '23 min', '4.2 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _short(value: float) -> str:
    """Two digits, of which pass rates need no more in a line.

    >>> _short(0.4062), _short(0.0213), _short(0)
    ('0.41', '0.021', '0')
    """
    return f"{value:.2g}"
