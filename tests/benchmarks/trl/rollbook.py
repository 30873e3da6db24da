"""The side of Rollbook: what its stages from rollout to update do, in one process; and all that is used of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import torch

from pipeline.advantages import compute_advantages
from pipeline.groups import build_training_set, summarize_groups
from pipeline.params import LoraParams, NormalizeParams, Params, load_params
from pipeline.policy import create_adapter, load_model
from pipeline.rollouts import completion_rows, make_requests
from pipeline.sampling import SampledCompletion
from pipeline.sampling.transformers_sampler import TransformersSampler
from pipeline.training.batching import TrainingRow, read_rows
from pipeline.training.forward import plan_update, prepare_model
from pipeline.training.recording import Logprobs, record_logprobs
from pipeline.training.state import TrainerState, make_optimizer, trainable_parameters
from pipeline.training.trainer import Trainer
from tests.benchmarks.trl.lengths import ForcedLengths
from tests.benchmarks.trl.task import CLIP, LEARNING_RATE, LORA_ALPHA, LORA_RANK, MAX_GRAD_NORM, Method, Part, Task
from tests.benchmarks.trl.turns import Turns
from tests.benchmarks.trl.workload import Workload

CPU = torch.device("cpu")


def run(side: str, task: Task, turns: Turns) -> None:
    """Steps of the task.

    `rollbook-filtered` meets groups with nothing to learn from, and drops them; `rollbook-checkpointed` runs its layers
    again in the backward pass.
    """
    torch.use_deterministic_algorithms(True)
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010  (as the stage has it)
    workload = Workload(task)
    equal_fraction = task.equal_fraction if side == "rollbook-filtered" else 0.0
    with TemporaryDirectory() as folder:
        policy = Policy(task, Path(folder) / "policy", side == "rollbook-checkpointed")
        for step in range(task.n_steps):
            rollouts = given_rollouts(workload, step) if task.part is Part.UPDATE else None
            turns.begin()
            marks = [time.perf_counter()]
            if rollouts is None:
                rollouts = policy.sample(workload, step)
                marks.append(time.perf_counter())
            rows = rows_to_train_on(rollouts, workload.rewards(step, equal_fraction))
            grad_norm = policy.update(rows, step)
            marks.append(time.perf_counter())
            turns.end(
                grad_norm=grad_norm,
                n_rows=len(rows),
                completion_tokens_mean=rollouts["completion_token_ids"].list.len().mean(),
                phase_seconds=[end - start for start, end in pairwise(marks)],
            )


class Policy:
    """A model to sample from and to train, as the stages hand it on."""

    def __init__(self, task: Task, folder: Path, gradient_checkpointing: bool = False) -> None:
        self.base = Path(task.base)
        self.params = make_params(task, gradient_checkpointing)
        lora = task.method is Method.LORA
        if lora:
            create_adapter(self.base, LoraParams(rank=LORA_RANK, alpha=LORA_ALPHA), 0, folder)
        self.folder = folder if lora else self.base
        dtype = torch.bfloat16 if lora else torch.float32
        self.model = load_model(self.folder, self.base, CPU, dtype, is_trainable=True)
        prepare_model(self.model, gradient_checkpointing)
        self.optimizer = make_optimizer(self.model, TrainerState(), self.params.training)

    def sample(self, workload: Workload, step: int) -> pl.DataFrame:
        """The table `rollouts` of the step, from the policy in bfloat16, which is loaded as the stage loads it."""
        model = load_model(self.folder, self.base, CPU)
        trained = trainable_parameters(self.model)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in trained:
                    parameter.copy_(trained[name])
        lengths = ForcedLengths(workload)
        lengths.attach(model)
        lengths.restart(workload.lengths(step))
        sampler = TransformersSampler(model, [workload.end_token_id], self.params.sampling)
        names = prompt_names(workload)
        requests = make_requests(names, workload.prompt_token_ids(step), workload.sizes.group_size, step)
        completions = sampler.sample(requests, lambda _done, _tokens: None)
        return completion_rows(names, requests, completions, workload.tokenizer, step)

    def update(self, rows: list[TrainingRow], step: int) -> float:
        """One optimizer step on `rows`; the norm of its gradient."""
        params = self.params.training
        steps = plan_update(self.model, rows, params, 0, step)
        recorded = partial(record_logprobs, rows=rows, steps=steps, temperature=1.0, on_progress=lambda *_: None)
        trainer = Trainer(
            model=self.model,
            optimizer=self.optimizer,
            rows=rows,
            params=params,
            temperature=self.params.sampling.temperature,
            max_completion_tokens=self.params.sampling.max_completion_tokens,
            iteration=step,
            first_step=step,
            old={},
            reference=None if params.kl_coefficient == 0 else self._reference(recorded),
            on_progress=lambda *_: None,
        )
        train_steps, _ = trainer.run(steps)
        return float(train_steps["grad_norm"][0])

    def _reference(self, recorded: partial[Logprobs]) -> Logprobs:
        if self.folder != self.base:
            return recorded(model=self.model, mode=self.model.disable_adapter())
        model = load_model(self.base, self.base, CPU, torch.float32)
        prepare_model(model)
        return recorded(model=model, mode=contextlib.nullcontext())


def make_params(task: Task, gradient_checkpointing: bool = False) -> Params:
    """params.yaml, but for what all sides have in common; the engine's log-probabilities correct nothing, as in TRL."""
    params = load_params()
    training = {
        "method": task.method.value,
        "gradient_checkpointing": gradient_checkpointing,
        "loss": "grpo",
        "clip_low": CLIP,
        "clip_high": CLIP,
        "kl_coefficient": task.kl_coefficient,
        "sampling_ratio_cap": None,
        "epochs": 1,
        "minibatches": 1,
        "learning_rate": LEARNING_RATE,
        "warmup_steps": 0,
        "weight_decay": 0.0,
        "max_grad_norm": MAX_GRAD_NORM,
    }
    sampling = {"temperature": 1.0, "max_completion_tokens": task.sizes.max_completion_tokens}
    return params.model_copy(
        update={
            "training": params.training.model_copy(update=training),
            "sampling": params.sampling.model_copy(update=sampling),
        }
    )


def given_rollouts(workload: Workload, step: int) -> pl.DataFrame:
    """The table `rollouts` of the completions that every side gets where the update alone is measured."""
    size, names = workload.sizes.group_size, prompt_names(workload)
    completions = [SampledCompletion(ids, [0.0] * len(ids), "stop", 0) for ids in workload.completion_token_ids(step)]
    groups = [completions[start : start + size] for start in range(0, len(completions), size)]
    requests = make_requests(names, workload.prompt_token_ids(step), size, step)
    return completion_rows(names, requests, groups, workload.tokenizer, step)


def rows_to_train_on(rollouts: pl.DataFrame, rewards: Sequence[float]) -> list[TrainingRow]:
    """What the stages normalize and filter leave of `rollouts`, whose rewards come in their order."""
    scored = rollouts.lazy().select("iteration", "completion_id", "group_id", "prompt_id")
    scored = scored.with_columns(reward=pl.Series(rewards), is_correct=pl.Series(rewards) == 1.0)
    advantages = compute_advantages(scored, NormalizeParams())
    training_set = build_training_set(advantages, summarize_groups(scored, rollouts.lazy()), rollouts.lazy())
    return read_rows(training_set.collect(engine="in-memory"), mask_truncated=False)


def prompt_names(workload: Workload) -> list[str]:
    """Ids of the prompts of a step, which sort as the prompts do."""
    return [f"{place:04d}" for place in range(workload.sizes.n_prompts)]
