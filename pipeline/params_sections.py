"""The sections of params.yaml, one class each: unknown keys are refused, and names have their units.

`normalize` and `training` are in `params_training`, `sampling` in `params_sampling`, `report` in `params_report`.

A section has the name of the stage that reads it, but for `base_model` (base), `sampling` (rollout, update, evaluate).
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Temperature = Annotated[float, Field(ge=1e-6, allow_inf_nan=False)]
"""A smaller one makes logits infinite; 1e-6 already takes the likeliest token."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
Device = Literal["auto", "cpu", "cuda"]
VerifierName = Literal["math", "reasoning_gym", "code", "json_answer", "tool_calls", "none"]
ShadowName = Literal["math", "reasoning_gym", "code", "json_answer", "tool_calls"]


class Section(BaseModel):
    """A frozen part of params.yaml that refuses keys it doesn't know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class BaseModelParams(Section):
    """The pretrained chat model a run starts from: exactly one of `wheel`, `path` and `hub`."""

    wheel: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+==[A-Za-z0-9._+!-]+$")] | None = None
    path: str | None = None
    hub: str | None = None
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> BaseModelParams:
        given = [name for name in ("wheel", "path", "hub") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of wheel, path and hub, not {given or 'none'}")
        if (self.hub is None) != (self.revision is None):
            raise ValueError("hub and revision (a full commit id, 40 hexadecimal digits) go together")
        return self


class ReasoningGymTask(Section):
    """One task of reasoning-gym, its share of the prompts, and its own config."""

    task: str
    weight: PositiveFloat = 1.0
    config: dict[str, Any] = {}


class PromptSource(Section):
    """Where prompts come from: exactly one of `reasoning_gym`, `file` and `dataset`.

    `prompt`, `answer`, `metadata` and `verifier` name columns of a file or data set.
    """

    reasoning_gym: Annotated[list[ReasoningGymTask], Field(min_length=1)] | None = None
    size: Positive | None = None
    seed: Natural | None = None
    file: str | None = None
    dataset: str | None = None
    split: str | None = None
    revision: str | None = None
    prompt: str | None = None
    answer: str | None = None
    metadata: str | None = None
    verifier: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> PromptSource:
        needs = {
            "reasoning_gym": ("size", "seed"),
            "file": ("prompt",),
            "dataset": ("split", "revision", "prompt"),
        }
        columns = ("answer", "metadata", "verifier")  # what a row may have beside its prompt
        given = [name for name in needs if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(needs)}, not {given or 'none'}")
        for key in ("size", "seed", "split", "revision", "prompt", *columns):
            is_needed, is_given = key in needs[given[0]], getattr(self, key) is not None
            if is_needed and not is_given:
                raise ValueError(f"{given[0]} needs {key}")
            if is_given and not is_needed and (key not in columns or given[0] == "reasoning_gym"):
                raise ValueError(f"{key} does not go with {given[0]}")
        return self


class PromptsParams(Section):
    """The prompts, how a chat is made of each, and the split."""

    source: PromptSource
    system: str | None = None
    template: str = "{prompt}"
    verifier: VerifierName | None = None
    train_size: Positive
    eval_size: Positive
    seed: Natural = 0

    @field_validator("template")
    @classmethod
    def _has_place(cls, value: str) -> str:
        if "{prompt}" not in value:
            raise ValueError("the template must contain {prompt}, where the prompt goes")
        return value

    @model_validator(mode="after")
    def _verifier_fits(self) -> PromptsParams:
        if (self.source.reasoning_gym is not None) and self.verifier not in (None, "reasoning_gym"):
            raise ValueError("prompts of reasoning_gym are verified by reasoning_gym; leave verifier out")
        if self.source.reasoning_gym is None and self.verifier == "reasoning_gym":
            raise ValueError("the verifier reasoning_gym needs prompts of reasoning_gym")
        return self

    @property
    def verifier_name(self) -> VerifierName:
        """`verifier`, or what fits the source where it is left out."""
        return self.verifier or ("reasoning_gym" if self.source.reasoning_gym else "math")


class StartParams(Section):
    """How an iteration takes over from its parent."""

    fresh_optimizer: bool = False


class DifficultyParams(Section):
    """Which prompts `select.strategy: difficulty` retires by their recent pass rate, and when it shows them again."""

    retired_below: Fraction = 0.05
    retired_above: Fraction = 0.95
    revisit_after_iterations: Positive = 10
    revisit_fraction: Fraction = 0.125

    @model_validator(mode="after")
    def _leaves_some(self) -> DifficultyParams:
        if self.retired_below >= self.retired_above:
            raise ValueError(
                f"retired_below {self.retired_below} is not below retired_above {self.retired_above}: all are retired"
            )
        return self


class SelectParams(Section):
    """Which prompts an iteration shows."""

    n_prompts: Positive
    strategy: Literal["uniform", "difficulty"] = "uniform"
    difficulty: DifficultyParams = DifficultyParams()


class RolloutParams(Section):
    """How many completions each prompt gets, the group, and how many groups there are for each that is wanted."""

    group_size: Annotated[int, Field(ge=2, le=65_535)]
    oversample: Annotated[float, Field(ge=1, le=1_000)] = 1.0

    def count_groups(self, n_prompts: int) -> int:
        """How many groups are rolled out where `n_prompts` are wanted.

        >>> RolloutParams(group_size=8, oversample=1.1).count_groups(10)
        11
        """
        return math.ceil(round(n_prompts * self.oversample, 6))  # 10 * 1.1 is 11.000000000000002


class MathParams(Section):
    """The verifier `math`: where the answer stands in a completion, and what checking it may cost."""

    extract: Literal["boxed", "final_answer", "last_number"] = "boxed"
    time_limit_seconds: PositiveFloat = 5.0
    max_answer_characters: Positive = 1_000


class ReasoningGymParams(Section):
    """The verifier `reasoning_gym`: which part of a completion the task's own scorer gets."""

    extract: Literal["whole", "answer_tag", "boxed", "final_answer", "last_number"] = "whole"
    time_limit_seconds: PositiveFloat = 5.0


class CodeParams(Section):
    """The verifier `code`: what keeps a solution in, and what running it may cost; a test is a case or an assert test.

    `isolation` says what stands between the code and this machine; without bubblewrap that is another container's job.
    """

    isolation: Literal["bubblewrap", "outer_container_is_the_sandbox"] = "bubblewrap"
    time_limit_seconds: PositiveFloat = 5.0
    total_time_limit_seconds: PositiveFloat = 30.0
    memory_mb: Annotated[int, Field(ge=64)] = 512
    max_output_bytes: Positive = 1 << 20


class JsonAnswerParams(Section):
    """The verifier `json_answer`: where the JSON stands in a completion."""

    extract: Literal["whole", "answer_tag", "code_block"] = "whole"
    time_limit_seconds: PositiveFloat = 5.0


class ToolCallsParams(Section):
    """The verifier `tool_calls`: where the calls stand in a completion."""

    extract: Literal["tool_call_tag", "whole"] = "tool_call_tag"
    time_limit_seconds: PositiveFloat = 5.0


class TermParams(Section):
    """A term of the reward: `kind` names it in the registry (the term's own name where left out).

    A `gated` one counts only where the completion is correct; without one that is `required` there is no reward.
    """

    weight: Finite
    kind: str | None = None
    gated: bool = False
    required: bool = True
    params: dict[str, Any] = {}


class ScoreParams(Section):
    """How a completion becomes a reward: the verifiers' settings, the weighted terms, and bounds of their sum.

    `shadow_verifiers` judge every completion beside the prompt's own verifier; what they say is recorded, not rewarded.
    With `answer_after` (`</think>`, say) verifiers see only what follows the last such text in a completion, and where
    it never comes an empty answer. Terms see all of it.
    """

    math: MathParams = MathParams()
    reasoning_gym: ReasoningGymParams = ReasoningGymParams()
    code: CodeParams = CodeParams()
    json_answer: JsonAnswerParams = JsonAnswerParams()
    tool_calls: ToolCallsParams = ToolCallsParams()
    shadow_verifiers: list[ShadowName] = []
    answer_after: Annotated[str, Field(min_length=1)] | None = None
    terms: Annotated[dict[str, TermParams], Field(min_length=1)]
    clip: Annotated[list[Finite], Field(min_length=2, max_length=2)] | None = None
    n_workers: Annotated[int, Field(gt=0, le=256)] = 2

    @field_validator("terms")
    @classmethod
    def _names(cls, value: dict[str, TermParams]) -> dict[str, TermParams]:
        for name in value:
            if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
                raise ValueError(f"{name!r} is no name for a term: it becomes a column, so use a-z, 0-9 and _")
        return value

    @field_validator("shadow_verifiers")
    @classmethod
    def _are_distinct(cls, value: list[ShadowName]) -> list[ShadowName]:
        if len(set(value)) < len(value):
            raise ValueError(f"{value} names a verifier twice")
        return value

    @field_validator("clip")
    @classmethod
    def _is_a_range(cls, value: list[float] | None) -> list[float] | None:
        if value is not None and value[0] >= value[1]:
            raise ValueError(f"{value} is no range: the first bound must be below the second")
        return value


class FilterParams(Section):
    """How many groups the filter keeps at most, and its bookkeeping; its rules are fixed."""

    pass_rate_decay: Fraction = 0.5
    target_groups: Positive | None = None


class EvaluateParams(Section):
    """Evaluation on held-out prompts."""

    every: Positive = 1
    n_prompts: Positive
    n_completions: Annotated[int, Field(gt=0, le=65_535)] = 1
    temperature: Temperature = 1.0
    k: list[Positive] = [1]

    @model_validator(mode="after")
    def _k_is_drawn(self) -> EvaluateParams:
        too_many = [k for k in self.k if k > self.n_completions]
        if too_many:
            raise ValueError(f"pass@{too_many[0]} needs n_completions of at least {too_many[0]}")
        return self
