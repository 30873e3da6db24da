"""What each preset makes of params.yaml, and what stays as it was given."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.errors import BadInput
from pipeline.params import NormalizeParams, Params, TrainingParams, check_params, load_params
from pipeline.presets import PRESETS, describe_method, fill_in_preset
from tests.stage_runs import PARAMS_FILE, ROOT

EXPECTED = {
    # baseline, scale, loss, clip_low, clip_high, kl_coefficient, kl_in, mask_truncated
    "grpo": ("mean", "group", "grpo", 0.2, 0.2, 0.04, "loss", False),
    "rloo": ("leave_one_out", "none", "dr_grpo", 0.2, 0.2, 0.05, "reward", False),
    "dr_grpo": ("mean", "none", "dr_grpo", 0.2, 0.2, 0.0, "loss", False),
    "dapo": ("mean", "group", "dapo", 0.2, 0.28, 0.0, "loss", True),
    "gspo": ("mean", "group", "gspo", 3e-4, 4e-4, 0.0, "loss", False),
    "cispo": ("mean", "group", "cispo", 0.2, 4.0, 0.0, "loss", False),
}


def bare(preset: str | None, **training: Any) -> dict[str, Any]:
    """The params of the tests with `preset`, without any key that a preset fills in but those of `training`."""
    params: dict[str, Any] = YAML(typ="safe", pure=True).load(PARAMS_FILE.read_text(encoding="utf-8"))
    keys = {key for values in PRESETS.values() for key in values["training"]}
    kept = {key: value for key, value in params["training"].items() if key not in keys}
    del params["normalize"]
    return {**params, "preset": preset, "training": {**kept, **training}}


def method_of(params: Params) -> tuple[Any, ...]:
    normalize, training = params.normalize, params.training
    return (
        *(normalize.baseline, normalize.scale, training.loss, training.clip_low, training.clip_high),
        *(training.kl_coefficient, training.kl_in, training.mask_truncated),
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_a_whole_method(preset: str) -> None:
    assert method_of(check_params(bare(preset))) == EXPECTED[preset]


def test_without_a_preset_the_defaults_of_the_fields_hold() -> None:
    defaults = ("mean", "group", "grpo", 0.2, 0.2, 0.04, "loss", False)
    for params in (bare(None), {key: value for key, value in bare(None).items() if key != "preset"}):
        assert method_of(check_params(params)) == defaults


@pytest.mark.parametrize("preset", PRESETS)
def test_a_key_that_is_given_wins(preset: str) -> None:
    given = bare(preset, clip_high=0.05, kl_coefficient=0.7)
    given["normalize"] = {"scale": "batch", "std_floor": 0.5}
    before = copy.deepcopy(given)
    params = check_params(given)
    assert (params.training.clip_high, params.training.kl_coefficient) == (0.05, 0.7)
    assert (params.normalize.scale, params.normalize.std_floor) == ("batch", 0.5)
    assert (params.normalize.baseline, params.training.loss) == (EXPECTED[preset][0], EXPECTED[preset][2])
    assert given == before, "it is not changed in place"


@pytest.mark.parametrize("loss", ["gspo", "cispo"])
def test_a_loss_brings_its_own_clip(loss: str) -> None:
    assert method_of(check_params(bare(None, loss=loss)))[3:5] == EXPECTED[loss][3:5]
    assert method_of(check_params(bare("grpo", loss=loss, clip_low=0.01, clip_high=0.02)))[3:5] == (0.01, 0.02)


@pytest.mark.parametrize(
    ("preset", "loss", "clip"),
    [
        ("dapo", "gspo", (3e-4, 4e-4)),
        ("gspo", "dapo", (0.2, 0.2)),
        ("dapo", "grpo", (0.2, 0.28)),
        ("cispo", "grpo", (0.2, 0.2)),
    ],
)
def test_a_presets_clip_stays_behind_where_the_loss_clips_another_ratio(
    preset: str, loss: str, clip: tuple[float, float]
) -> None:
    baseline, scale, *_, kl_coefficient, kl_in, mask_truncated = EXPECTED[preset]
    expected = (baseline, scale, loss, *clip, kl_coefficient, kl_in, mask_truncated)
    assert method_of(check_params(bare(preset, loss=loss))) == expected


@pytest.mark.parametrize("section", ["normalize", "training"])
@pytest.mark.parametrize("value", [None, 5, []])
def test_a_section_that_is_no_mapping_is_named(section: str, value: Any) -> None:
    with pytest.raises(BadInput, match=f"params.yaml: {section}: "):
        check_params({**bare("dapo"), section: value})


def test_what_is_no_preset_fills_in_nothing() -> None:
    for preset in (None, "ppo", 5, ["grpo"]):
        assert fill_in_preset({"preset": preset, "training": {}}) == {"preset": preset, "training": {}}


# The method in a line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_as_it_is_departs_in_nothing(preset: str) -> None:
    params = check_params(bare(preset))
    line = describe_method(params.preset, params.normalize, params.training)
    assert line.startswith(f"preset {preset}, loss {EXPECTED[preset][2]}, baseline ")
    assert "departs" not in line


@pytest.mark.parametrize(
    ("training", "part"),
    [
        ({"clip_low": 0.1, "clip_high": 0.3}, ", clip 0.1/0.3, "),
        ({"dual_clip": 3.0}, ", clip 0.2/0.2, dual clip 3, "),
        ({"loss": "gspo"}, ", clip 0.0003/0.0004, "),
        ({"loss": "cispo"}, ", ratio capped at 5, "),
        ({"kl_coefficient": 0.0}, ", no KL"),
        ({"kl_estimator": "k2"}, ", KL 0.04 (k2 in the loss)"),
        ({"kl_in": "reward"}, ", KL 0.04 (k1 in the reward)"),
        ({"entropy_coefficient": 0.01}, ", entropy bonus 0.01"),
    ],
)
def test_the_line_says_what_holds(training: dict[str, Any], part: str) -> None:
    line = describe_method(None, NormalizeParams(), TrainingParams(learning_rate=1.0, **training))
    assert line.startswith("preset none, loss ")
    assert part in line
    assert "departs" not in line


def test_the_method_of_the_file_at_the_root() -> None:
    params = load_params(ROOT / "params.yaml")
    assert describe_method(params.preset, params.normalize, params.training) == (
        "preset grpo, loss grpo, baseline mean, scale group, clip 0.2/0.28, KL 0.005 (k3 in the loss); "
        "departs in training.clip_high (0.2), training.kl_coefficient (0.04)"
    )
