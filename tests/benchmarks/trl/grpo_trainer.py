"""The side of TRL: its GRPOTrainer as it is, whose steps a callback begins and ends.

`trl` is what the defaults of TRL give on a CPU. They recompute activations (gradient checkpointing), which saves
memory and costs time; `trl-uncheckpointed` doesn't.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from tests.benchmarks.trl.lengths import ForcedLengths
from tests.benchmarks.trl.padded import lora_config
from tests.benchmarks.trl.task import CLIP, LEARNING_RATE, MAX_GRAD_NORM, Method, Part, Task
from tests.benchmarks.trl.turns import Turns
from tests.benchmarks.trl.workload import Workload


class StepByStep(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Begins a step of training with a turn, and ends the turn once the step's gradient norm is logged."""

    def __init__(self, turns: Turns, workload: Workload, lengths: ForcedLengths) -> None:
        self.turns = turns
        self.workload = workload
        self.lengths = lengths

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for the turn."""
        self.turns.begin()
        self.lengths.restart(self.workload.lengths(state.global_step))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Report the step; what is logged after the last one is of no interest."""
        if "grad_norm" in logs:
            seen = {"completion_tokens_mean": logs["completions/mean_length"]}
            self.turns.end(grad_norm=float(logs["grad_norm"]), **seen)


def run(side: str, task: Task, turns: Turns) -> None:
    """Train for the steps of the task; where the update alone is measured, the rollouts are given."""
    workload = Workload(task)
    lengths = ForcedLengths(workload)
    model = AutoModelForCausalLM.from_pretrained(task.base, dtype="float32", local_files_only=True)
    if task.part is Part.WHOLE:
        lengths.attach(model)
    prompts = [{"prompt": prompt} for step in range(task.n_steps) for prompt in workload.prompts(step)]
    with TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            args=make_config(task, folder, is_checkpointed=side == "trl"),
            train_dataset=Dataset.from_list(prompts),
            processing_class=workload.tokenizer,
            reward_funcs=make_reward(workload),
            peft_config=lora_config() if task.method is Method.LORA else None,
            rollout_func=make_rollout(workload) if task.part is Part.UPDATE else None,
            callbacks=[StepByStep(turns, workload, lengths)],
        )
        trainer.train()


def make_config(task: Task, folder: str, is_checkpointed: bool) -> GRPOConfig:
    """One optimizer step per batch of rollouts, and the loss and numbers that all sides have; else TRL's defaults."""
    assert task.sizes.n_completions % task.micro_batch == 0, "rows_per_microbatch has to divide the completions"
    return GRPOConfig(
        output_dir=folder,
        max_steps=task.n_steps,
        per_device_train_batch_size=task.micro_batch,
        gradient_accumulation_steps=task.sizes.n_completions // task.micro_batch,
        num_generations=task.sizes.group_size,
        max_completion_length=task.sizes.max_completion_tokens,
        loss_type="grpo",
        epsilon=CLIP,
        beta=task.kl_coefficient,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=MAX_GRAD_NORM,
        gradient_checkpointing=is_checkpointed,
        bf16=True,
        use_cpu=True,
        shuffle_dataset=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def make_reward(workload: Workload) -> Any:
    """The rewards of the step at hand. TRL trains on every group, whatever they are."""
    fraction = 0.0 if workload.task.part is Part.UPDATE else workload.task.equal_fraction

    def reward(completions: list[Any], trainer_state: Any, **kwargs: Any) -> list[float]:
        return workload.rewards(trainer_state.global_step, fraction)

    return reward


def make_rollout(workload: Workload) -> Any:
    """The rollouts of the step at hand instead of sampled ones."""

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        rollouts = workload.rollouts(trainer.state.global_step)
        return {
            "prompt_ids": [rollout.prompt_token_ids for rollout in rollouts],
            "completion_ids": [rollout.completion_token_ids for rollout in rollouts],
            "logprobs": None,
        }

    return rollout
