"""Stage `update`: GRPO on the kept completions."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch

from pipeline.errors import BadInput
from pipeline.params import Params
from pipeline.policy import Model, copy_policy, is_adapter, load_model, resolve_device, save_model
from pipeline.table_io import read_table, write_table
from pipeline.tables import TOKEN_LOGPROBS, TRAIN_STEPS, TRAINING_SET
from pipeline.training.batching import Step, TrainingRow, cut_padded_rows, plan_steps, read_rows
from pipeline.training.packing import can_pack, cut_packed_rows
from pipeline.training.state import load_state, make_optimizer, read_optimizer, save_state, trainable_parameters
from pipeline.training.trainer import Logprobs, Trainer, record_logprobs
from stages import paths
from stages.progress import progress
from stages.runner import Result, run_stage

MEANS = ("loss", "policy_loss", "kl", "entropy", "sampling_kl", "grad_norm", "learning_rate")


def update(params: Params) -> Result:
    """Read `training_set`, policy, reference and state; write the next policy and state, and what happened."""
    training = params.training
    rows = read_rows(read_table(paths.TRAINING_SET, TRAINING_SET), training.mask_truncated)
    if not rows:
        return _keep_policy()
    torch.use_deterministic_algorithms(True)
    # A debugging aid that the switch turns on with it; it writes over all memory that torch gets.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010  (untyped there)
    device = resolve_device(training.device)
    state = load_state(paths.TRAINER_STATE)
    _check_method(params)
    reference = _reference_of_whole_model(params, rows, device) if training.method == "full" else None
    dtype = torch.bfloat16 if training.method == "lora" else torch.float32
    model = load_model(paths.POLICY, paths.BASE, device, dtype, is_trainable=True)
    _check_tokens(rows, model)
    _check_disk(model, training.method)
    optimizer = make_optimizer(model, state, training)
    steps = _plan(model, rows, params)
    if training.method == "lora" and training.kl_coefficient > 0:
        reference = _record(model, rows, steps, params, "reference", model.disable_adapter())
    old = _record(model, rows, steps, params, "old", contextlib.nullcontext()) if len(steps) > 1 else {}

    started = time.monotonic()
    with progress("update", sum(len(step.rows) for step in steps), "tokens") as advance:
        trainer = Trainer(
            model=model,
            optimizer=optimizer,
            rows=rows,
            params=training,
            temperature=params.sampling.temperature,
            max_completion_tokens=params.sampling.max_completion_tokens,
            iteration=params.iteration,
            first_step=state.step,
            old=old,
            reference=reference,
            on_progress=advance,
        )
        train_steps, token_logprobs = trainer.run(steps)
    seconds = time.monotonic() - started

    _check_finite(model)
    save_model(model, paths.NEXT_POLICY, tokenizer_from=paths.BASE)
    next_state = read_optimizer(model, optimizer, state.step + len(steps), training.method)
    save_state(next_state, paths.NEXT_TRAINER_STATE)
    write_table(train_steps, paths.TRAIN_STEPS, TRAIN_STEPS)
    write_table(token_logprobs, paths.TOKEN_LOGPROBS, TOKEN_LOGPROBS)
    return _summarize(train_steps, len(rows), seconds)


def _plan(model: Model, rows: Sequence[TrainingRow], params: Params) -> list[Step]:
    training = params.training
    cut = cut_packed_rows if can_pack(model) else cut_padded_rows
    limit = training.max_tokens_per_microbatch
    return plan_steps(
        rows, training.epochs, training.minibatches, partial(cut, rows, max_tokens=limit), params.seed, params.iteration
    )


def _reference_of_whole_model(params: Params, rows: Sequence[TrainingRow], device: torch.device) -> Logprobs | None:
    """The reference's log-probabilities, from a model that is gone before the policy is loaded; None without a KL."""
    if params.training.kl_coefficient == 0:
        return None
    model = load_model(_reference_folder(paths.REFERENCE), paths.BASE, device, torch.float32)
    return _record(model, rows, _plan(model, rows, params), params, "reference", contextlib.nullcontext())


def _record(
    model: Model,
    rows: Sequence[TrainingRow],
    steps: Sequence[Step],
    params: Params,
    title: str,
    mode: AbstractContextManager[Any],
) -> Logprobs:
    with progress(f"{title} log-probabilities", len(rows), "tokens") as advance:
        return record_logprobs(model, rows, steps, params.sampling.temperature, advance, mode)


def _reference_folder(reference: Path) -> Path:
    file = reference / "reference.json"
    try:
        return Path(json.loads(file.read_text())["policy"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(str(file), f"it names no policy ({error})", "Run `dvc repro start`") from error


def _check_method(params: Params) -> None:
    found = "lora" if is_adapter(paths.POLICY) else "full"
    if found != params.training.method:
        problem = f"{params.training.method!r}, and {paths.POLICY} was made for {found!r}"
        raise BadInput("params.yaml: training.method", problem, "Keep the method of the run, or begin a new run")


def _check_tokens(rows: Sequence[TrainingRow], model: Model) -> None:
    n_known = model.get_input_embeddings().num_embeddings
    for row in rows:
        for token in {*row.prompt_token_ids, *row.completion_token_ids}:
            if not 0 <= token < n_known:
                problem = f"{row.completion_id} has the token id {token}, and the policy knows 0 to {n_known - 1}"
                raise BadInput(str(paths.TRAINING_SET), problem, "Run `dvc repro` so that it fits the policy")


def _check_finite(model: Model) -> None:
    for name, parameter in trainable_parameters(model).items():
        if not bool(parameter.detach().to(torch.bfloat16).isfinite().all()):
            problem = f"{name} of the next policy is not finite; the policy stays as it was"
            raise BadInput(str(paths.NEXT_POLICY), problem, "Lower training.learning_rate")


def _check_disk(model: Model, method: str) -> None:
    """Refuse before hours of training what the disk can't hold after them; say what a large model will take."""
    n_parameters = sum(parameter.numel() for parameter in trainable_parameters(model).values())
    # A bfloat16 policy, a float32 master and two moments, each in data/ and in DVC's cache.
    needed = 2 * n_parameters * (2 + 3 * 4)
    free = shutil.disk_usage(paths.DATA).free
    if method == "full":
        print(f"update: full fine-tuning writes {needed / 1e9:.1f} GB in this iteration, {free / 1e9:.1f} GB are free")
    if needed > free:
        problem = f"it needs {needed / 1e9:.1f} GB for the next policy and state, and {free / 1e9:.1f} GB are free"
        raise BadInput(str(paths.DATA), problem, "Free some space, or set training.method to lora")


def _keep_policy() -> Result:
    copy_policy(paths.POLICY, paths.NEXT_POLICY)
    copy_policy(paths.TRAINER_STATE, paths.NEXT_TRAINER_STATE)
    write_table(TRAIN_STEPS.empty(), paths.TRAIN_STEPS, TRAIN_STEPS)
    write_table(TOKEN_LOGPROBS.empty(), paths.TOKEN_LOGPROBS, TOKEN_LOGPROBS)
    return _summarize(TRAIN_STEPS.empty(), 0, 0.0)


def _summarize(train_steps: pl.DataFrame, n_completions: int, seconds: float) -> Result:
    n_tokens = int(train_steps["n_tokens"].sum())
    clipped = train_steps["clip_fraction_low"] + train_steps["clip_fraction_high"]
    metrics: dict[str, Any] = {name: train_steps[name].mean() for name in MEANS}
    metrics |= {
        "n_steps": train_steps.height,
        "n_completions": n_completions,
        "n_tokens": n_tokens,
        "clip_fraction": clipped.mean(),
        "ratio_max": train_steps["ratio_max"].max(),
        "is_policy_unchanged": train_steps.height == 0,
        "tokens_per_second": round(n_tokens / seconds, 1) if seconds else None,
    }
    if train_steps.height == 0:
        return Result("no completion to train on: the policy stays as it is", metrics)
    kl = "" if metrics["kl"] is None else f", KL {metrics['kl']:.4f}"
    line = f"{train_steps.height} steps on {n_completions} completions, loss {metrics['loss']:.4f}{kl}"
    return Result(f"{line}, gradient norm {metrics['grad_norm']:.3f}", metrics)


if __name__ == "__main__":
    run_stage("update", update)
