"""The term `reward_model`: the score of a Hugging Face sequence classifier with one output, as reward models have.

The chat, with the completion as the assistant's message, goes through the tokenizer's own chat template. Where the
score stands in a padded row is for the classifier's own code to say, as it was when the model was trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from pipeline.errors import BadInput, TransientError, first_line
from pipeline.params import Device, Positive, Section
from pipeline.rewards.completion import Completion, Message


class Params(Section):
    """`model` is a folder, or the id of a hub's repository, which goes with a `revision`: a full commit id.

    A chat of more than `max_tokens` is not cut, and has no score.
    """

    model: str
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    max_tokens: Positive = 4096
    batch_completions: Positive = 16
    device: Device = "auto"

    @model_validator(mode="after")
    def _can_be_found(self) -> Params:
        is_folder = Path(self.model).expanduser().is_dir()
        if not is_folder and self.revision is None:
            raise ValueError(f"{self.model!r} is no folder; the id of a hub's repository goes with a revision")
        return self


@dataclass(frozen=True)
class RewardModel:
    """A classifier and its tokenizer; `pad_id` is None where it can't be given several rows at a time."""

    model: Any
    tokenizer: Any
    pad_id: int | None


def score_groups(completions: Sequence[Completion], params: Params) -> list[float | None]:
    """The model's logit for each completion; None for a chat that is too long."""
    judge = _load(params.model, params.revision, params.device)
    rows = [_token_ids(completion, judge.tokenizer) for completion in completions]
    values: list[float | None] = [None] * len(rows)
    # By length, so that little of a batch is padding.
    fitting = sorted((i for i, row in enumerate(rows) if len(row) <= params.max_tokens), key=lambda i: len(rows[i]))
    size = 1 if judge.pad_id is None else params.batch_completions
    for start in range(0, len(fitting), size):
        batch = fitting[start : start + size]
        for i, value in zip(batch, _logits([rows[i] for i in batch], judge), strict=True):
            values[i] = value
    return values


def _token_ids(completion: Completion, tokenizer: Any) -> list[int]:
    chat: list[Message] = [*completion.messages, {"role": "assistant", "content": completion.completion_text}]
    if tokenizer.chat_template:
        ids: list[int] = tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False)
        return ids
    text = "\n".join(message["content"] for message in chat)
    return list(tokenizer(text)["input_ids"])


def _logits(rows: Sequence[Sequence[int]], judge: RewardModel) -> list[float]:
    """The logit of each row, padded on the right."""
    import torch

    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[judge.pad_id or 0] * (longest - len(row))] for row in rows], device=judge.model.device)
    lengths = torch.tensor([len(row) for row in rows], device=ids.device)
    mask = torch.arange(longest, device=ids.device) < lengths[:, None]
    with torch.inference_mode():
        logits = judge.model(input_ids=ids, attention_mask=mask.long()).logits
    values: list[float] = logits.float().squeeze(-1).tolist()
    return values


@lru_cache(maxsize=2)
def _load(name: str, revision: str | None, device: str) -> RewardModel:
    """Weights are safetensors, and no code of a model is run."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    where = f"reward model {name}"
    place = str(Path(name).expanduser()) if Path(name).expanduser().is_dir() else name
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, revision=revision)
        dtype = torch.float32 if chosen == "cpu" else torch.bfloat16
        model, loaded = AutoModelForSequenceClassification.from_pretrained(
            place, revision=revision, use_safetensors=True, dtype=dtype, output_loading_info=True
        )
    except ConnectionError as error:
        raise TransientError(where, f"the hub can't be reached ({first_line(error)})", "Try again") from error
    except (OSError, ValueError, KeyError) as error:
        remedy = "Name a folder or repository with config.json, a tokenizer and safetensors weights"
        raise BadInput(where, f"it can't be loaded as a sequence classifier ({first_line(error)})", remedy) from error
    if loaded["missing_keys"]:  # a language model, whose head would be random
        problem = f"its weights have no {sorted(loaded['missing_keys'])[0]}"
        raise BadInput(where, problem, "Name a model that was trained to score")
    if model.config.num_labels != 1:
        problem = f"it has {model.config.num_labels} outputs, and a reward model has one"
        raise BadInput(where, problem, "Name another model")
    pad_id = tokenizer.pad_token_id if model.config.pad_token_id is None else model.config.pad_token_id
    model.config.pad_token_id = pad_id
    return RewardModel(model.to(chosen).eval(), tokenizer, pad_id)
