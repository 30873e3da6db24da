"""What `update` refuses: before it works what can't come out well, and after it what must not go on."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from pipeline.errors import BadInput
from pipeline.params import TrainingParams
from pipeline.policy import Model, is_adapter
from pipeline.training.batching import TrainingRow
from pipeline.training.distributed import own_share
from pipeline.training.state import trainable_parameters


def check_method(method: str, policy: Path) -> None:
    """Refuse another method than the one that the policy in the folder `policy` was made for."""
    found = "lora" if is_adapter(policy) else "full"
    if found != method:
        problem = f"{method!r}, and {policy} was made for {found!r}"
        raise BadInput("params.yaml: training.method", problem, "Keep the method of the run, or begin a new run")


def check_tokens(rows: Sequence[TrainingRow], model: Model, name: str) -> None:
    """Refuse token ids that `model`, called `name`, does not know."""
    n_known = model.get_input_embeddings().num_embeddings
    for row in rows:
        for token in {*row.prompt_token_ids, *row.completion_token_ids}:
            if not 0 <= token < n_known:
                problem = f"{row.completion_id} has the token id {token}, and {name} knows 0 to {n_known - 1}"
                raise BadInput("data/training_set.parquet", problem, "Run `dvc repro` so that it fits the policy")


def check_finite(model: Model) -> None:
    """Refuse weights, or this rank's share of them, that are not finite once they are bfloat16."""
    for name, parameter in trainable_parameters(model).items():
        if not bool(own_share(parameter.detach()).to(torch.bfloat16).isfinite().all()):
            problem = f"{name} of the next policy is not finite; the policy stays as it was"
            raise BadInput("data/next_policy", problem, "Lower training.learning_rate")


def check_disk(model: Model, training: TrainingParams, data: Path) -> None:
    """Refuse before hours of training what the disk can't hold after them; say what a large model will take."""
    n_parameters = sum(parameter.numel() for parameter in trainable_parameters(model).values())
    n_state = 3 * 4  # bytes of a float32 master and two moments
    # With a bfloat16 policy, in data/ and in DVC's cache; and two checkpoints, while one takes over from the other.
    needed = 2 * n_parameters * (2 + n_state)
    if training.checkpoint_minutes is not None:
        needed += 2 * n_parameters * n_state
    free = shutil.disk_usage(data).free
    if training.method == "full":
        print(f"update: full fine-tuning writes {needed / 1e9:.1f} GB in this iteration, {free / 1e9:.1f} GB are free")
    if needed > free:
        problem = f"it needs {needed / 1e9:.1f} GB for the next policy and state, and {free / 1e9:.1f} GB are free"
        raise BadInput(str(data), problem, "Free some space, or set training.method to lora")
