"""Prompt sources: tasks of reasoning-gym, a file of the user's own, or a Hugging Face data set -> raw prompts."""

from __future__ import annotations

from pipeline.errors import BadInput
from pipeline.params import PromptsParams
from pipeline.prompt_sources.columns import check_answers_named, raw_prompts
from pipeline.prompt_sources.files import file_rows
from pipeline.prompt_sources.hub_data_sets import data_set_rows
from pipeline.prompt_sources.raw import Advance, RawPrompt, no_advance
from pipeline.prompt_sources.reasoning_gym_tasks import generate_prompts

__all__ = ["Advance", "RawPrompt", "read_prompts"]


def read_prompts(params: PromptsParams, advance: Advance = no_advance) -> list[RawPrompt]:
    """All rows of the source that `params` names, in its own order, duplicates included.

    `advance(1, 0)` is called after each generated item.

    Raises:
        BadInput: the source or one of its rows breaks a rule; the message names it.
        TransientError: a data set can't be reached.
    """
    source = params.source
    if source.reasoning_gym is not None:
        return generate_prompts(source, advance)
    needs_answer = params.verifier_name == "math"
    check_answers_named(source, needs_answer)
    rows, label = file_rows(source) if source.file is not None else data_set_rows(source)
    prompts = raw_prompts(rows, source, label, needs_answer)
    if not prompts:
        raise BadInput(label, "it has no rows", "Put at least one prompt into it")
    return prompts
