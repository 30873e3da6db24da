"""Out of memory: told apart from other errors, and said in words that name the setting to change."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from pipeline.errors import BadInput, first_line
from pipeline.training.batching import TrainingRow

CPU_ALLOCATOR = "DefaultCPUAllocator"
"""In the message of the plain RuntimeError that torch raises where the CPU's memory is used up."""


class MicroBatchTooLarge(BadInput):
    """A micro-batch ran out of memory; weights and optimizer are as they were before its step."""


@contextmanager
def micro_batch_named(rows: Sequence[TrainingRow]) -> Iterator[None]:
    """Make running out of memory in the block, which runs the micro-batch `rows`, a `MicroBatchTooLarge`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        # They hold the activations, and whoever handles the error may need the memory.
        traceback.clear_frames(error.__traceback__)
        n_tokens = sum(len(row.completion_token_ids) for row in rows)
        longest = max(len(row.prompt_token_ids) for row in rows)
        size = f"completions: {len(rows)}, their tokens: {n_tokens}, longest prompt: {longest} tokens"
        problem = f"a micro-batch does not fit into memory ({size}; {first_line(error)})"
        remedy = (
            "Lower it; where it is below the longest completion already, set training.gradient_checkpointing, or take "
            "training.method lora in a new run"
        )
        raise MicroBatchTooLarge("params.yaml: training.max_tokens_per_microbatch", problem, remedy) from error


@contextmanager
def model_named() -> Iterator[None]:
    """Make running out of memory in the block, for the model or its optimizer, a `BadInput`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        problem = f"the model and its optimizer do not fit into memory ({first_line(error)})"
        remedy = "Begin a new run with method lora, which trains few of the weights, or with a smaller base_model"
        raise BadInput("params.yaml: training.method", problem, remedy) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that there is no memory, be it a GPU's or the CPU's.

    >>> is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory.")), is_out_of_memory(RuntimeError("no kernel"))
    (True, False)
    """
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or CPU_ALLOCATOR in str(error)
