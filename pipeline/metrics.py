"""The numbers that stages leave in `data/metrics/<stage>.json`: which there are, and how they are read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import BadInput

Metrics = Mapping[str, Mapping[str, Any]]
"""Stage -> key -> number, string, boolean, null, or a mapping of them."""

KEYS: dict[str, tuple[str, ...]] = {
    "prompts": ("n_rows", "n_duplicates", "n_train", "n_eval"),
    "base": ("model_type", "n_parameters", "fingerprint"),
    "start": ("method", "parent", "step"),
    "select": ("n_prompts", "epoch_min", "epoch_max"),
    "rollout": (
        "n_groups",
        "n_completions",
        "n_prompt_tokens",
        "n_completion_tokens",
        "completion_tokens_mean",
        "truncated_fraction",
        "tokens_per_second",
        "sampling_logprob_mean",
        "policy_fingerprint",
        "engine",
        "engine_version",
        "seed_scope",
        "is_repeatable",
    ),
    "score": ("n_completions", "n_scored", "n_errors", "reward_mean", "pass_rate", "term_means"),
    "normalize": ("n_advantages", "n_null", "advantage_abs_mean"),
    "filter": ("n_groups", "n_kept", "n_training_completions", "outcomes", "dropped_reasons"),
    "update": (
        "n_steps",
        "n_steps_resumed",
        "n_completions",
        "n_tokens",
        "loss",
        "policy_loss",
        "kl",
        "entropy",
        "clip_fraction",
        "ratio_max",
        "sampling_kl",
        "grad_norm",
        "learning_rate",
        "is_policy_unchanged",
        "tokens_per_second",
        "n_tokens_run",
        "padding_fraction",
        "flops_per_second",
        "matmul_peak",
        "peak_fraction",
    ),
    "evaluate": ("is_scheduled", "n_prompts", "n_completions", "before", "after"),
    "report": ("iteration", "n_warnings"),
}
"""What each stage says of itself; every stage also has `seconds` and `peak_memory_mb`."""

USAGE_KEYS = ("seconds", "peak_memory_mb")
STAGES_BEFORE_REPORT = tuple(stage for stage in KEYS if stage != "report")


def read_metrics(folder: Path, stages: Iterable[str] = tuple(KEYS)) -> dict[str, dict[str, Any]]:
    """The metrics of `stages` out of `folder`.

    Raises:
        BadInput: a file is missing, is no JSON object, or lacks one of `KEYS`.
    """
    return {stage: _read_stage(folder / f"{stage}.json", stage) for stage in stages}


def finite(value: Any) -> float | int | None:
    """`value` where it is a finite number, else None.

    >>> finite(0.5), finite(float("nan")), finite(None), finite(True)
    (0.5, None, None, None)
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


def _read_stage(path: Path, stage: str) -> dict[str, Any]:
    rerun = f"Run `dvc repro {stage}` to make it"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(str(path), f"there is no such file, and it holds the numbers of {stage}", rerun) from None
    except ValueError as error:  # a UnicodeDecodeError is one too
        raise BadInput(str(path), f"it is not valid JSON ({error})", rerun) from error
    if not isinstance(value, dict):
        raise BadInput(str(path), f"it holds {type(value).__name__}, not an object", rerun)
    missing = [key for key in (*KEYS[stage], *USAGE_KEYS) if key not in value]
    if missing:
        raise BadInput(f"{path}: {missing[0]}", "it is missing", rerun)
    return value
