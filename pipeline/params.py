"""params.yaml as frozen, typed objects: read, its preset filled in, checked as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.errors import BadInput
from pipeline.params_errors import explain
from pipeline.params_report import HealthParams, OnHealth, OnHealthParams, ReportParams
from pipeline.params_sampling import SamplingParams, ServerParams, VllmParams
from pipeline.params_sections import (
    BaseModelParams,
    CodeParams,
    Device,
    DifficultyParams,
    EvaluateParams,
    FilterParams,
    Finite,
    JsonAnswerParams,
    MathParams,
    Natural,
    Positive,
    PositiveFloat,
    PromptSource,
    PromptsParams,
    ReasoningGymParams,
    ReasoningGymTask,
    RolloutParams,
    ScoreParams,
    Section,
    SelectParams,
    StartParams,
    TermParams,
    ToolCallsParams,
    VerifierName,
)
from pipeline.params_training import LoraParams, NormalizeParams, TrainingParams
from pipeline.presets import PresetName, fill_in_preset

__all__ = [
    "PARAMS_FILE",
    "WHERE_SOURCES_LIVE",
    "BaseModelParams",
    "CodeParams",
    "Device",
    "DifficultyParams",
    "FilterParams",
    "Finite",
    "HealthParams",
    "JsonAnswerParams",
    "LoraParams",
    "MathParams",
    "NormalizeParams",
    "OnHealth",
    "OnHealthParams",
    "Params",
    "Positive",
    "PositiveFloat",
    "PromptSource",
    "PromptsParams",
    "ReasoningGymParams",
    "ReasoningGymTask",
    "ReportParams",
    "RolloutParams",
    "SamplingParams",
    "ScoreParams",
    "Section",
    "SelectParams",
    "ServerParams",
    "TermParams",
    "ToolCallsParams",
    "TrainingParams",
    "VerifierName",
    "VllmParams",
    "check_params",
    "load_params",
    "parse_params",
]

PARAMS_FILE = Path("params.yaml")
WHERE_SOURCES_LIVE = Path("data/sources")
"""Prompt files live here: the folder is a dependency of the stage `prompts`, so that DVC sees an edit."""


class Params(Section):
    """The whole of params.yaml; the keys of `preset` are in their sections, where stages read them."""

    seed: Natural
    iteration: Natural
    parent: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None
    preset: PresetName | None = None
    base_model: BaseModelParams
    start: StartParams = StartParams()
    prompts: PromptsParams
    select: SelectParams
    rollout: RolloutParams
    sampling: SamplingParams
    score: ScoreParams
    normalize: NormalizeParams = NormalizeParams()
    filter: FilterParams = FilterParams()
    training: TrainingParams
    evaluate: EvaluateParams
    report: ReportParams = ReportParams()

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, value: Any) -> Any:
        return fill_in_preset(value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _sizes_fit(self) -> Params:
        n_groups = self.rollout.count_groups(self.select.n_prompts)
        if n_groups > self.prompts.train_size:
            times = f" x rollout.oversample {self.rollout.oversample:g}" if self.rollout.oversample > 1 else ""
            raise ValueError(
                f"select.n_prompts {self.select.n_prompts}{times} is more than prompts.train_size "
                f"{self.prompts.train_size}, and no prompt is shown twice in an iteration"
            )
        if self.filter.target_groups is not None and self.filter.target_groups > n_groups:
            raise ValueError(
                f"filter.target_groups {self.filter.target_groups} is more than the {n_groups} groups that "
                "select.n_prompts and rollout.oversample come to"
            )
        if self.evaluate.n_prompts > self.prompts.eval_size:
            raise ValueError(
                f"evaluate.n_prompts {self.evaluate.n_prompts} is more than prompts.eval_size {self.prompts.eval_size}"
            )
        if (self.parent is None) != (self.iteration == 0):
            raise ValueError(
                f"iteration {self.iteration} with parent {self.parent}: iteration 0 has no parent, and a later one "
                "has the full commit id of the iteration before it"
            )
        return self


def load_params(path: Path = PARAMS_FILE) -> Params:
    """Read and check `path`.

    Raises:
        BadInput: the file is missing, no YAML, or breaks a rule; the message names the key, the value, the rule,
            and for an unknown key the nearest known one.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        remedy = "Run from the folder that holds params.yaml, the root of the repository"
        raise BadInput(str(path), f"there is no such file in {Path.cwd()}", remedy) from None
    except UnicodeDecodeError as error:
        raise BadInput(str(path), f"it is not UTF-8 text ({error.reason})", "Save it as UTF-8") from error
    return parse_params(text, str(path))


def parse_params(text: str, where: str) -> Params:
    """The YAML `text` as `Params`; raises `BadInput` as `load_params` does, whose message begins with `where`."""
    try:
        value = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as error:  # 2026-13-01 looks like a date, and makes a ValueError
        raise BadInput(where, f"it is not valid YAML: {' '.join(str(error).split())}", "Mend that line") from error
    try:
        YAML(typ="safe").load(text)  # as DVC reads it, with libyaml, to which [http://a:1] is none
    except YAMLError as error:
        problem = f"DVC can't read it: {' '.join(str(error).split())}"
        raise BadInput(where, problem, "Put the text there in quotes") from error
    return check_params(value, where)


def check_params(value: object, where: str = str(PARAMS_FILE)) -> Params:
    """`value`, as YAML gives it, as `Params`; raises `BadInput` as `load_params` does."""
    if not isinstance(value, dict):
        raise BadInput(where, f"it holds {type(value).__name__}, not a mapping of sections", "See the README's example")
    try:
        return Params.model_validate(value)
    except ValidationError as error:
        raise explain(error, Params, where) from error
