"""Stage `update`: GRPO on the kept completions, by this process or by several that it starts."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import polars as pl
import torch

from pipeline.errors import BadInput
from pipeline.params import Params, TrainingParams
from pipeline.policy import Model, copy_policy, load_model, resolve_device, save_model
from pipeline.table_io import read_table, write_table
from pipeline.tables import TOKEN_LOGPROBS, TRAIN_STEPS, TRAINING_SET
from pipeline.training.batching import Step, TrainingRow, read_rows
from pipeline.training.checkpoint import Checkpoint, DamagedCheckpoint, fingerprint, set_aside
from pipeline.training.checks import check_disk, check_finite, check_method, check_tokens
from pipeline.training.cost import COST, cost_of
from pipeline.training.distributed import Ranks, gather_weights
from pipeline.training.forward import plan_update, prepare_model
from pipeline.training.launch import joined, leave_to_ranks
from pipeline.training.memory import MicroBatchTooLarge, model_named
from pipeline.training.recording import Logprobs, record_logprobs, stops_that_bar, take_kl_from_reward
from pipeline.training.state import load_state, make_optimizer, read_optimizer, save_state
from pipeline.training.tracking import Log, open_tracker, tracker_name
from pipeline.training.trainer import Trainer
from stages import paths
from stages.progress import progress
from stages.runner import Result, rank, run_stage

MEANS = ("loss", "policy_loss", "kl", "entropy", "sampling_kl", "grad_norm", "learning_rate")
TRACKING = Path(".rollbook/tracking")
WITHOUT_EFFECT = {
    "checkpoint_minutes",
    "device",
    "gradient_checkpointing",
    "launcher",
    "max_tokens_per_microbatch",
    "n_processes",
}
"""Settings that change nothing of an update but the rounding of sums; the kind of device counts by itself."""


def update(params: Params) -> Result:
    """Read `training_set`, policy, reference and state; write the next policy and state, and what happened.

    An update that was killed goes on from its checkpoint, if it has the same inputs, and none is left in the end.
    """
    tracker_name(os.environ)  # a wrong name is refused before any work
    training = params.training
    rows = read_rows(read_table(paths.TRAINING_SET, TRAINING_SET), training.mask_truncated)
    if rank() is not None and training.launcher == "single":
        problem = "it says single, and torchrun started this process"
        raise BadInput("params.yaml: training.launcher", problem, "Set it to torchrun")
    if rows and training.launcher == "torchrun" and rank() is None:
        leave_to_ranks("stages.update", training)
    with joined(resolve_device(training.device)) as ranks, model_named():
        result = _train(params, rows, ranks) if rows else _keep_policy(ranks)
        if ranks.is_first:
            shutil.rmtree(paths.CHECKPOINTS, ignore_errors=True)
    return result


def _train(params: Params, rows: Sequence[TrainingRow], ranks: Ranks) -> Result:
    training = params.training
    _be_deterministic()
    checkpoint = ranks.after_the_first(lambda: _open_checkpoint(params, ranks))
    taken = checkpoint.taken
    n_resumed = len(taken.metrics)
    state = load_state(taken.state)
    check_method(training.method, paths.POLICY)
    kind = _reference_kind(training)
    reference = None
    if kind == "loaded":
        reference = checkpoint.recorded("reference", lambda: _record_loaded(params, rows, ranks))

    device = resolve_device(training.device)
    model = load_model(paths.POLICY, paths.BASE, device, _dtype(params), is_trainable=True)
    prepare_model(model, training.gradient_checkpointing)
    check_tokens(rows, model, "the policy")
    check_disk(model, training, paths.DATA)
    ranks.shard(model)
    optimizer = make_optimizer(model, state, training)
    first_step = state.step - n_resumed
    del state  # it holds a second copy of the weights
    steps = plan_update(model, rows, training, params.seed, params.iteration)
    record = partial(_record, model, rows, ranks, params)
    if kind == "adapter_off":
        off = model.disable_adapter()
        reference = checkpoint.recorded("reference", lambda: record(steps, "reference", off))
    # The first step's own forward pass gives the old log-probabilities of its rows, where nothing needs them sooner.
    is_needed_sooner = kind == "policy" or (kind != "none" and training.kl_in == "reward")
    later = steps if is_needed_sooner else steps[1:]
    old = taken.old
    if later and not old:
        old = checkpoint.recorded("old", lambda: record(later, "old", contextlib.nullcontext()))
    if kind == "policy":
        reference = old
    if reference is not None and training.kl_in == "reward":
        rows = take_kl_from_reward(rows, old, reference, training.kl_coefficient, params.normalize.baseline)
    if n_resumed:
        print(f"update: it goes on from step {n_resumed} of {len(steps)}, where an earlier try came to", flush=True)

    with (
        progress("update", sum(len(step.rows) for step in steps[n_resumed:]), "tokens") as advance,
        open_tracker(tracker_name(os.environ) if ranks.is_first else None, Path.cwd().name, TRACKING) as log,
    ):
        trainer = Trainer(
            model=model,
            optimizer=optimizer,
            rows=rows,
            params=training,
            temperature=params.sampling.temperature,
            max_completion_tokens=params.sampling.max_completion_tokens,
            iteration=params.iteration,
            first_step=first_step,
            old=old,
            reference=reference,
            on_progress=advance,
            metrics=list(taken.metrics),
            ranks=ranks,
            stops=stops_that_bar(params.sampling, model, paths.BASE),
        )
        started = time.monotonic()
        train_steps, token_logprobs = _run(trainer, steps, checkpoint, log)
        seconds = time.monotonic() - started
        _write_next(trainer)
    if ranks.is_first:
        write_table(train_steps, paths.TRAIN_STEPS, TRAIN_STEPS)
        write_table(token_logprobs, paths.TOKEN_LOGPROBS, TOKEN_LOGPROBS)
    return _summarize(train_steps, len(rows), n_resumed, seconds, cost_of(trainer, steps[n_resumed:], seconds))


def _be_deterministic() -> None:
    torch.use_deterministic_algorithms(True)
    # A debugging aid that the switch turns on with it; it writes over all memory that torch gets.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010  (untyped there)


def _run(
    trainer: Trainer, steps: Sequence[Step], checkpoint: Checkpoint, log: Log
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Take the steps, with checkpoints; where the memory does not suffice, those that were taken are kept.

    With several ranks, those of the last checkpoint: the other ranks are in the midst of a step, and can't give shares.
    """

    def on_step() -> None:
        checkpoint.write_if_due(trainer)
        log(trainer.metrics[-1])

    try:
        return trainer.run(steps, on_step)
    except MicroBatchTooLarge:
        if trainer.ranks.size == 1:
            checkpoint.write(trainer)
        raise


def _write_next(trainer: Trainer) -> None:
    """Write the next policy and trainer state."""
    model, ranks = trainer.model, trainer.ranks
    check_finite(model)
    weights = gather_weights(model, ranks)
    if ranks.is_first:
        save_model(model, paths.NEXT_POLICY, tokenizer_from=paths.BASE, weights=weights)
    del weights
    n_steps = trainer.first_step + len(trainer.metrics)
    state = read_optimizer(model, trainer.optimizer, n_steps, trainer.params.method, ranks)
    if ranks.is_first:
        save_state(state, paths.NEXT_TRAINER_STATE)


def _open_checkpoint(params: Params, ranks: Ranks) -> Checkpoint:
    """The checkpoint of the update with just these inputs; a damaged one is set aside, and an empty one takes over.

    Where a micro-batch was too large, the update goes on with smaller ones, to the same result but for rounding.
    """
    training = params.training
    minutes = training.checkpoint_minutes
    if minutes is None:
        return Checkpoint(paths.CHECKPOINTS, None, paths.TRAINER_STATE, ranks)
    files = (paths.TRAINING_SET, paths.POLICY, paths.REFERENCE, paths.TRAINER_STATE, paths.BASE, Path(__file__))
    sampling = params.sampling
    values = (
        training.model_dump(mode="json", exclude=WITHOUT_EFFECT),
        resolve_device(training.device).type,
        [params.seed, params.iteration, params.normalize.baseline],
        [sampling.temperature, sampling.max_completion_tokens, sampling.min_completion_tokens, sampling.stop_token_ids],
    )
    folder = paths.CHECKPOINTS / fingerprint(files, *values)
    try:
        return Checkpoint(folder, minutes, paths.TRAINER_STATE, ranks)
    except DamagedCheckpoint:
        aside = set_aside(folder)
        print(f"update: it begins anew: the checkpoint of an earlier try is damaged, and is now {aside}", flush=True)
        return Checkpoint(folder, minutes, paths.TRAINER_STATE, ranks)


def _record(
    model: Model,
    rows: Sequence[TrainingRow],
    ranks: Ranks,
    params: Params,
    steps: Sequence[Step],
    title: str,
    mode: AbstractContextManager[Any],
) -> Logprobs:
    temperature, stops = params.sampling.temperature, stops_that_bar(params.sampling, model, paths.BASE)
    with progress(f"{title} log-probabilities", len(rows), "tokens") as advance:
        return record_logprobs(model, rows, steps, temperature, advance, mode, ranks, stops)


def _record_loaded(params: Params, rows: Sequence[TrainingRow], ranks: Ranks) -> Logprobs:
    """Those of a reference of its own, whose model is gone before the policy is loaded."""
    folder = _reference_folder(paths.REFERENCE)
    model = load_model(folder, paths.BASE, resolve_device(params.training.device), _dtype(params))
    prepare_model(model)
    check_tokens(rows, model, str(folder))
    ranks.shard(model)
    steps = plan_update(model, rows, params.training, params.seed, params.iteration)
    return _record(model, rows, ranks, params, steps, "reference", contextlib.nullcontext())


def _dtype(params: Params) -> torch.dtype:
    return torch.bfloat16 if params.training.method == "lora" else torch.float32


def _reference_kind(training: TrainingParams) -> Literal["none", "policy", "adapter_off", "loaded"]:
    """Where the reference's log-probabilities come from: the old policy's own, or the base model under the adapter."""
    folder = _reference_folder(paths.REFERENCE) if training.kl_coefficient > 0 else None
    if folder is None:
        return "none"
    if folder == paths.POLICY:
        return "policy"
    return "adapter_off" if training.method == "lora" and folder == paths.BASE else "loaded"


def _reference_folder(reference: Path) -> Path:
    file = reference / "reference.json"
    try:
        return Path(json.loads(file.read_text())["policy"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(str(file), f"it names no policy ({error})", "Run `dvc repro start`") from error


def _keep_policy(ranks: Ranks) -> Result:
    if ranks.is_first:
        copy_policy(paths.POLICY, paths.NEXT_POLICY)
        copy_policy(paths.TRAINER_STATE, paths.NEXT_TRAINER_STATE)
        write_table(TRAIN_STEPS.empty(), paths.TRAIN_STEPS, TRAIN_STEPS)
        write_table(TOKEN_LOGPROBS.empty(), paths.TOKEN_LOGPROBS, TOKEN_LOGPROBS)
    return _summarize(TRAIN_STEPS.empty(), 0, 0, 0.0, {})


def _summarize(
    train_steps: pl.DataFrame, n_completions: int, n_resumed: int, seconds: float, cost: dict[str, Any]
) -> Result:
    """`seconds` and `cost` are of the steps after the first `n_resumed`, which are from a checkpoint."""
    n_tokens = int(train_steps["n_tokens"].sum())
    n_tokens_now = int(train_steps["n_tokens"][n_resumed:].sum())
    clipped = train_steps["clip_fraction_low"] + train_steps["clip_fraction_high"]
    metrics: dict[str, Any] = {name: train_steps[name].mean() for name in MEANS}
    metrics |= {
        "n_steps": train_steps.height,
        "n_steps_resumed": n_resumed,
        "n_completions": n_completions,
        "n_tokens": n_tokens,
        "clip_fraction": clipped.mean(),
        "ratio_max": train_steps["ratio_max"].max(),
        "is_policy_unchanged": train_steps.height == 0,
        "tokens_per_second": round(n_tokens_now / seconds, 1) if n_tokens_now else None,
        **dict.fromkeys(COST),
        **cost,
    }
    if train_steps.height == 0:
        return Result("no completion to train on: the policy stays as it is", metrics)
    kl = "" if metrics["kl"] is None else f", KL {metrics['kl']:.4f}"
    line = f"{train_steps.height} steps on {n_completions} completions, loss {metrics['loss']:.4f}{kl}"
    return Result(f"{line}, gradient norm {metrics['grad_norm']:.3f}", metrics)


if __name__ == "__main__":
    run_stage("update", update)
