"""The learning rate over a run: up linearly in its first optimizer steps, then constant, or down to a floor.

Steps are counted over the whole run, so that it makes no difference how iterations cut it.
"""

from __future__ import annotations

import math

from pipeline.params import TrainingParams


def learning_rate_at(params: TrainingParams, step: int) -> float:
    """The learning rate of the run's `step`, from 0.

    It rises linearly to the peak, `learning_rate`, in the first `warmup_steps` steps. With a decay it falls from the
    peak at step `warmup_steps` to `min_learning_rate_fraction` of it at step `decay_steps`, where it stays: along a
    line, or along half a period of a cosine (arXiv 1608.03983, equation 5).

    >>> params = TrainingParams(learning_rate=1.0, warmup_steps=4)
    >>> [learning_rate_at(params, step) for step in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    >>> linear = dict(learning_rate=1.0, warmup_steps=2, decay_steps=6, min_learning_rate_fraction=0.2)
    >>> params = TrainingParams(decay="linear", **linear)
    >>> [round(learning_rate_at(params, step), 3) for step in range(8)]
    [0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2]
    """
    rise = min(1.0, (step + 1) / max(1, params.warmup_steps))
    return params.learning_rate * rise * _decayed(params, step)


def _decayed(params: TrainingParams, step: int) -> float:
    """What the decay leaves of the peak, as a fraction."""
    if params.decay_steps is None:
        return 1.0
    progress = (step - params.warmup_steps) / (params.decay_steps - params.warmup_steps)
    progress = min(1.0, max(0.0, progress))
    share = 1 - progress if params.decay == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return params.min_learning_rate_fraction + (1 - params.min_learning_rate_fraction) * share
