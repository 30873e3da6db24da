"""The trainer's own log-probabilities of completions, those that were not trained on included."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import polars as pl
import torch

from pipeline.params import SamplingParams, TrainingParams
from pipeline.policy import load_model, resolve_device
from pipeline.tables import TOKEN_LOGPROBS
from pipeline.training.batching import TrainingRow
from pipeline.training.checks import check_tokens
from pipeline.training.forward import plan_update, prepare_model
from pipeline.training.recording import OnProgress, record_logprobs, stops_that_bar
from pipeline.training.state import TrainerState, load_state, make_optimizer


def recompute_logprobs(
    rollouts: pl.DataFrame,
    policy: Path,
    base: Path,
    trainer_state: Path | None,
    params: TrainingParams,
    sampling: SamplingParams,
    on_progress: OnProgress,
) -> pl.DataFrame:
    """The table `token_logprobs` of all `rollouts`, as an update with `params` computes it before its first step.

    The rollouts were drawn under `sampling`. The weights are the float32 masters in `trainer_state`, or those
    of `policy` where that is None. Rounding depends on which completions are run together, which here are others than
    in the update.
    """
    rows = [
        TrainingRow(**row, advantage=0.0)
        for row in rollouts.select(
            "completion_id", "group_id", "prompt_token_ids", "completion_token_ids", "sampling_logprobs"
        ).iter_rows(named=True)
    ]
    dtype = torch.bfloat16 if params.method == "lora" else torch.float32
    model = load_model(policy, base, resolve_device(params.device), dtype, is_trainable=True)
    prepare_model(model)
    check_tokens(rows, model, "the policy")
    make_optimizer(model, load_state(trainer_state) if trainer_state else TrainerState(), params)
    once = params.model_copy(update={"epochs": 1, "minibatches": 1})
    steps, stops = plan_update(model, rows, once), stops_that_bar(sampling, model, base)
    old = record_logprobs(model, rows, steps, sampling.temperature, on_progress, nullcontext(), stops=stops)
    records = [
        {
            "iteration": iteration,
            "completion_id": row.completion_id,
            "steps": [],
            "old_logprobs": old[index],
            "ref_logprobs": None,
        }
        for index, (iteration, row) in enumerate(zip(rollouts["iteration"], rows, strict=True))
    ]
    return pl.DataFrame(records, schema=TOKEN_LOGPROBS.schema)
