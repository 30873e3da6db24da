"""What the trainer carries from one iteration to the next: float32 masters, Adam's moments, the step count.

A bfloat16 policy alone would lose every change smaller than its rounding. A state folder holds `state.json`, and
`state.safetensors` once a step was taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from pipeline.errors import BadInput
from pipeline.params import TrainingParams
from pipeline.policy import Model
from pipeline.table_io import atomic_path
from pipeline.training.distributed import ALONE, Ranks, is_shared, shared_as, whole
from pipeline.training.state_file import StateCounts, read_counts, write_counts

PARTS = ("master", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class TrainerState:
    """Optimizer steps taken in the run, and tensors by `<part>.<parameter name>`: none before the first step.

    `optimizer_step` counts the steps that the moments have seen: fewer than `step` where they began afresh.
    """

    step: int = 0
    method: str = "lora"
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    optimizer_step: int = 0


def save_state(state: TrainerState, folder: Path) -> None:
    """Write `state` to `folder`, whole or not at all."""
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        write_counts(StateCounts(state.method, state.step, state.optimizer_step), temporary)
        if state.tensors:
            save_file({name: state.tensors[name] for name in sorted(state.tensors)}, temporary / "state.safetensors")


def load_state(folder: Path) -> TrainerState:
    """Read what `save_state` wrote."""
    counts = read_counts(folder)
    tensors = _load_tensors(folder / "state.safetensors") if counts.optimizer_step else {}
    return TrainerState(counts.step, counts.method, tensors, counts.optimizer_step)


def _load_tensors(file: Path) -> dict[str, torch.Tensor]:
    try:
        tensors: dict[str, torch.Tensor] = load_file(file)
        return tensors
    except (OSError, SafetensorError) as error:
        remedy = "Restore it with `dvc checkout`, or run `dvc repro start`"
        raise BadInput(str(file), f"it can't be read ({error})", remedy) from error


def make_optimizer(model: Model, state: TrainerState, params: TrainingParams) -> torch.optim.AdamW:
    """AdamW over the trainable parameters of `model`, which first become the masters of `state`."""
    named = trainable_parameters(model)
    optimizer = torch.optim.AdamW(
        _parameter_groups(list(named.values())),
        lr=params.learning_rate,
        betas=(params.adam_beta1, params.adam_beta2),
        eps=params.adam_epsilon,
        weight_decay=params.weight_decay,
    )
    if not state.tensors:
        return optimizer
    _check_fit(named, state)
    for name, parameter in named.items():
        master, exp_avg, exp_avg_sq = (shared_as(parameter, state.tensors[f"{part}.{name}"]) for part in PARTS)
        with torch.no_grad():
            parameter.copy_(master)
        optimizer.state[parameter] = {
            "step": torch.tensor(float(state.optimizer_step)),
            "exp_avg": exp_avg,
            "exp_avg_sq": exp_avg_sq,
        }
    return optimizer


def _parameter_groups(parameters: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
    """Those that ranks have shares of apart from the others: torch updates many at once, but of one kind."""
    shared = [parameter for parameter in parameters if is_shared(parameter)]
    others = [parameter for parameter in parameters if not is_shared(parameter)]
    groups: list[dict[str, Any]] = [{"params": shared, "foreach": True}] if shared else []
    return [*groups, {"params": others}] if others else groups


def read_optimizer(
    model: Model, optimizer: torch.optim.AdamW, step: int, method: str, ranks: Ranks = ALONE
) -> TrainerState:
    """The state to carry on, after `step` optimizer steps in all; only the first rank gets the tensors."""
    tensors: dict[str, torch.Tensor] = {}
    optimizer_step = 0
    for name, parameter in trainable_parameters(model).items():
        moments = optimizer.state[parameter]
        optimizer_step = int(moments["step"])
        for part, tensor in zip(PARTS, (parameter, moments["exp_avg"], moments["exp_avg_sq"]), strict=True):
            gathered = whole(tensor.detach())
            if ranks.is_first:
                tensors[f"{part}.{name}"] = gathered.float().cpu().contiguous()
    return TrainerState(step, method, tensors, optimizer_step)


def trainable_parameters(model: Model) -> dict[str, torch.nn.Parameter]:
    """The parameters that require gradients, by name, in the order of the names."""
    return dict(sorted((name, value) for name, value in model.named_parameters() if value.requires_grad))


def _check_fit(named: dict[str, torch.nn.Parameter], state: TrainerState) -> None:
    expected = {f"{part}.{name}": tuple(value.shape) for part in PARTS for name, value in named.items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.tensors.items()}
    if expected != found:
        name = sorted(set(expected.items()) ^ set(found.items()))[0][0]
        problem = f"{name} is {found.get(name, 'absent')} there and {expected.get(name, 'absent')} in the policy"
        remedy = "Keep training.method and training.lora as they were when the run began, or begin a new run"
        raise BadInput("data/trainer_state", problem, remedy)
