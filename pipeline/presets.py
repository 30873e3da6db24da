"""Presets: a method by the name of its paper, in one line of params.yaml.

A preset fills the keys of `normalize` and `training` that params.yaml leaves out; a key that is given wins. Where the
loss that is given clips another ratio than the preset's loss, the preset's clips would not fit and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pipeline.params_training import OWN_CLIP, NormalizeParams, TrainingParams

PresetName = Literal["grpo", "rloo", "dr_grpo", "dapo", "gspo", "cispo"]
Preset = Mapping[str, Mapping[str, Any]]
"""Section -> key -> value."""

PPO_CLIP = {"clip_low": 0.2, "clip_high": 0.2}


def _preset(baseline: str, scale: str, **training: Any) -> Preset:
    return {"normalize": {"baseline": baseline, "scale": scale}, "training": training}


PRESETS: Mapping[str, Preset] = {
    # DeepSeekMath, arXiv 2402.03300, which gives no clip.
    "grpo": _preset("mean", "group", loss="grpo", **PPO_CLIP, kl_coefficient=0.04, kl_in="loss"),
    # arXiv 2402.14740: a sum over tokens, of which `dr_grpo` takes a constant share; one step, so that no clip binds.
    # The paper tunes the coefficient to the task; 0.05 is TRL's.
    "rloo": _preset("leave_one_out", "none", loss="dr_grpo", **PPO_CLIP, kl_coefficient=0.05, kl_in="reward"),
    # arXiv 2503.20783
    "dr_grpo": _preset("mean", "none", loss="dr_grpo", **PPO_CLIP, kl_coefficient=0.0),
    # arXiv 2503.14476, with its overlong filtering
    "dapo": _preset(
        "mean", "group", loss="dapo", clip_low=0.2, clip_high=0.28, kl_coefficient=0.0, mask_truncated=True
    ),
    # arXiv 2507.18071
    "gspo": _preset("mean", "group", loss="gspo", **OWN_CLIP["gspo"], kl_coefficient=0.0),
    # MiniMax-M1, arXiv 2506.13585
    "cispo": _preset("mean", "group", loss="cispo", **OWN_CLIP["cispo"], kl_coefficient=0.0),
}


def fill_in_preset(params: Mapping[str, Any]) -> dict[str, Any]:
    """`params`, as YAML gives them, with the keys of their preset that they leave out; what is wrong stays as it is.

    >>> filled = fill_in_preset({"preset": "dapo", "training": {"clip_high": 0.3, "learning_rate": 1e-6}})
    >>> filled["normalize"], filled["training"]["loss"], filled["training"]["clip_high"]
    ({'baseline': 'mean', 'scale': 'group'}, 'dapo', 0.3)
    """
    name = params.get("preset")
    preset = PRESETS.get(name, {}) if isinstance(name, str) else {}
    sections = {section: params.get(section, {}) for section in preset}
    filled = {
        section: {**_fitting(preset[section], given), **given}
        for section, given in sections.items()
        if isinstance(given, Mapping)
    }
    return {**params, **filled}


def _fitting(keys: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    losses = {str(loss) for loss in (keys.get("loss"), given.get("loss", keys.get("loss")))}
    if len(losses) == 1 or not losses & OWN_CLIP.keys():
        return keys
    return {key: value for key, value in keys.items() if key not in PPO_CLIP}


def describe_method(preset: PresetName | None, normalize: NormalizeParams, training: TrainingParams) -> str:
    """The method in one line, with what departs from `preset` and the preset's value of it in brackets.

    >>> describe_method("dr_grpo", NormalizeParams(scale="none"), TrainingParams(loss="dr_grpo", learning_rate=1.0))
    'preset dr_grpo, loss dr_grpo, baseline mean, scale none, clip 0.2/0.2, KL 0.04 (k3 in the loss); \
departs in training.kl_coefficient (0.0)'
    """
    parts = [
        f"preset {preset or 'none'}",
        f"loss {training.loss}",
        f"baseline {normalize.baseline}",
        f"scale {normalize.scale}",
        _describe_clip(training),
        _describe_kl(training),
    ]
    if training.entropy_coefficient:
        parts.append(f"entropy bonus {training.entropy_coefficient:g}")
    departures = _departures(preset, {"normalize": normalize, "training": training}) if preset else []
    return ", ".join(parts) + (f"; departs in {', '.join(departures)}" if departures else "")


def _describe_clip(training: TrainingParams) -> str:
    if training.loss == "cispo":
        return f"ratio capped at {1 + training.clip_high:g}"
    dual = f", dual clip {training.dual_clip:g}" if training.dual_clip else ""
    return f"clip {training.clip_low:g}/{training.clip_high:g}{dual}"


def _describe_kl(training: TrainingParams) -> str:
    if training.kl_coefficient == 0:
        return "no KL"
    estimator = "k1" if training.kl_in == "reward" else training.kl_estimator
    return f"KL {training.kl_coefficient:g} ({estimator} in the {training.kl_in})"


def _departures(preset: PresetName, sections: Mapping[str, NormalizeParams | TrainingParams]) -> list[str]:
    return [
        f"{section}.{key} ({value})"
        for section, keys in PRESETS[preset].items()
        for key, value in keys.items()
        if getattr(sections[section], key) != value
    ]
