"""The side without any idea: rows padded to the longest, logits everywhere, log_softmax, the loss, AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from tests.benchmarks.trl.task import CLIP, LEARNING_RATE, LORA_ALPHA, LORA_RANK, MAX_GRAD_NORM, Method, Part, Task
from tests.benchmarks.trl.turns import Turns
from tests.benchmarks.trl.workload import Rollout, Workload


def run(side: str, task: Task, turns: Turns) -> None:
    """Updates on the rollouts of each step."""
    assert task.part is Part.UPDATE, "there is no rollout in it"
    assert task.kl_coefficient == 0, "there is no reference in it"
    workload = Workload(task)
    model = load_float32(task)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=LEARNING_RATE, weight_decay=0.0)
    for step in range(task.n_steps):
        rollouts = workload.rollouts(step)
        turns.begin()
        optimizer.zero_grad(set_to_none=True)
        for start in range(0, len(rollouts), task.micro_batch):
            loss = micro_batch_loss(model, rollouts[start : start + task.micro_batch]) / len(rollouts)
            loss.backward()  # type: ignore[no-untyped-call]
        grad_norm = float(clip_grad_norm_(trainable, MAX_GRAD_NORM))
        optimizer.step()
        turns.end(grad_norm=grad_norm)


def load_float32(task: Task) -> Any:
    """The base model in float32, whole or with a new adapter, as TRL has it."""
    model = AutoModelForCausalLM.from_pretrained(task.base, dtype=torch.float32, local_files_only=True)
    return get_peft_model(model, lora_config()) if task.method is Method.LORA else model


def lora_config() -> LoraConfig:
    """The adapter that every side trains."""
    return LoraConfig(
        r=LORA_RANK, lora_alpha=LORA_ALPHA, target_modules="all-linear", lora_dropout=0.0, task_type="CAUSAL_LM"
    )


def micro_batch_loss(model: Any, rollouts: Sequence[Rollout]) -> torch.Tensor:
    """The clipped loss summed over the completions, each the mean over its tokens."""
    prompts = [torch.tensor(rollout.prompt_token_ids) for rollout in rollouts]
    completions = [torch.tensor(rollout.completion_token_ids) for rollout in rollouts]
    ids, mask = pad_rows(prompts, completions)
    n_completion = max(map(len, completions))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    logprobs = logits[:, :-1].float().log_softmax(dim=-1)
    logprobs = logprobs.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)[:, -n_completion:]
    ratio = (logprobs - logprobs.detach()).exp()
    advantages = torch.tensor([[rollout.advantage] for rollout in rollouts])
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    completion_mask = mask[:, -n_completion:]
    return -((objective * completion_mask).sum(dim=1) / completion_mask.sum(dim=1)).sum()


def pad_rows(prompts: list[torch.Tensor], completions: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask [rows, P + C], prompts padded on the left and completions on the right.

    >>> ids, mask = pad_rows([torch.tensor([7]), torch.tensor([7, 8])], [torch.tensor([9, 9]), torch.tensor([9])])
    >>> ids.tolist(), mask.tolist()
    ([[0, 7, 9, 9], [7, 8, 9, 0]], [[0, 1, 1, 1], [1, 1, 1, 0]])
    """

    def pad(rows: list[torch.Tensor], side: str) -> torch.Tensor:
        return pad_sequence(rows, batch_first=True, padding_side=side)

    def ones(rows: list[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.ones_like(row) for row in rows]

    ids = torch.cat([pad(prompts, "left"), pad(completions, "right")], dim=1)
    mask = torch.cat([pad(ones(prompts), "left"), pad(ones(completions), "right")], dim=1)
    return ids, mask
