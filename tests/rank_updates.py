"""Updates of a tiny model by one process or by two, and what they leave: for the tests of several ranks.

`run_ranks` runs in processes of its own, which import this module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from pipeline.params import TrainingParams
from pipeline.policy import save_model
from pipeline.training.checkpoint import Checkpoint
from pipeline.training.distributed import ALONE, Ranks, gather_weights, whole
from pipeline.training.recording import Logprobs
from pipeline.training.state import TrainerState, load_state, read_optimizer, save_state
from tests.tiny_updates import Update, load_trainable, plan, prepare, random_rows, record, training_params

N_RANKS = 2


class Killed(Exception):
    """What ends an update in the midst of it."""


@dataclass(frozen=True)
class Case:
    """An update of the policy in `policy`, with five groups, three of them in a step: a step is several micro-batches.

    Epsilon is large, as a gradient that is nothing but rounding would else move a weight as far as any other.
    """

    policy: str
    base: str
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def params(self) -> TrainingParams:
        given = {
            "epochs": 2,
            "minibatches": 2,
            "kl_coefficient": 0.5,
            "weight_decay": 0.01,
            "adam_epsilon": 1e-2,
            "learning_rate": 1e-2,
        }
        return training_params(**{**given, "max_tokens_per_microbatch": 20, **self.changes})

    @property
    def method(self) -> str:
        return "full" if self.policy == self.base else "lora"


@contextlib.contextmanager
def in_float32() -> Iterator[None]:
    """No autocast: rounding to bfloat16 would hide differences up to 1e-2."""
    autocast, torch.autocast = torch.autocast, lambda *_, **__: contextlib.nullcontext()  # type: ignore
    yield
    torch.autocast = autocast  # type: ignore[misc]


def start(case: Case, ranks: Ranks, seed: int, policy: Path, state: TrainerState, reference: Logprobs) -> Update:
    """An update of the policy in the folder `policy`, as the stage prepares it."""
    model = load_trainable(policy, Path(case.base))
    ranks.shard(model)
    return prepare(
        model, random_rows(n_groups=5, seed=seed), case.params, state=state, reference=reference, ranks=ranks
    )


def reference_of(case: Case, ranks: Ranks, seed: int) -> Logprobs:
    """The base model's log-probabilities."""
    model = load_trainable(Path(case.base), Path(case.base))
    ranks.shard(model)
    rows = random_rows(n_groups=5, seed=seed)
    return record(model, rows, plan(model, rows, case.params), ranks=ranks)


def update_twice(case: Case, ranks: Ranks, folder: Path, begun: Path | None = None) -> None:
    """Two iterations of `case`, and all they leave in `folder`; the first may be one that others left in `begun`."""
    if begun is None:
        begun = folder / "first"
        _update_once(case, ranks, 1, Path(case.policy), TrainerState(method=case.method), begun)
    _update_once(case, ranks, 2, begun / "policy", load_state(begun / "state"), folder / "second")


def _update_once(case: Case, ranks: Ranks, seed: int, policy: Path, state: TrainerState, folder: Path) -> None:
    update = start(case, ranks, seed, policy, state, reference_of(case, ranks, seed))
    leave(case, update, folder)


def leave(case: Case, update: Update, folder: Path) -> None:
    """Run `update`; have gradients, policy, state and tables in `folder`."""
    tables = update.run()
    trainer, ranks = update.trainer, update.trainer.ranks
    gradients = {name: whole(gradient).contiguous() for name, gradient in update.gradients.items()}
    weights = gather_weights(trainer.model, ranks)
    n_steps = trainer.first_step + len(update.steps)
    state = read_optimizer(trainer.model, trainer.optimizer, n_steps, case.method, ranks)
    if ranks.is_first:
        folder.mkdir(parents=True)
        save_model(trainer.model, folder / "policy", tokenizer_from=Path(case.base), weights=weights)
        save_state(state, folder / "state")
        save_file(gradients, folder / "gradients.safetensors")
        for name, table in zip(("train_steps", "token_logprobs"), tables, strict=True):
            table.write_parquet(folder / f"{name}.parquet")
    if ranks.size > 1:
        dist.barrier()


def update_until_killed(case: Case, ranks: Ranks, folder: Path) -> None:
    """Take one step of the first iteration, and write a checkpoint to `folder`."""
    save_once(folder, ranks)
    checkpoint = Checkpoint(folder / "checkpoint", 0.0, folder / "state", ranks)
    update = resume(case, ranks, checkpoint)

    def on_step() -> None:
        checkpoint.write_if_due(update.trainer)
        raise Killed

    with contextlib.suppress(Killed):
        update.trainer.run(update.steps, on_step)
    if ranks.size > 1:
        dist.barrier()


def go_on(case: Case, ranks: Ranks, begun: Path, folder: Path) -> None:
    """The rest of an iteration whose checkpoint is in `begun`."""
    checkpoint = ranks.after_the_first(lambda: Checkpoint(begun / "checkpoint", 0.0, begun / "state", ranks))
    assert len(checkpoint.taken.metrics) == 1
    leave(case, resume(case, ranks, checkpoint), folder)


def save_once(folder: Path, ranks: Ranks) -> None:
    """A state before the first step, in `folder`."""
    if ranks.is_first:
        folder.mkdir(parents=True)
        save_state(TrainerState(), folder / "state")
    if ranks.size > 1:
        dist.barrier()


def resume(case: Case, ranks: Ranks, checkpoint: Checkpoint) -> Update:
    """The first iteration, from where the checkpoint has come."""
    state = load_state(checkpoint.taken.state)
    n_taken = len(checkpoint.taken.metrics)
    state = TrainerState(state.step - n_taken, state.method, state.tensors, state.optimizer_step)
    reference = checkpoint.recorded("reference", lambda: reference_of(case, ranks, 1))
    update = start(case, ranks, 1, Path(case.policy), state, reference)
    update.trainer.old = checkpoint.taken.old or update.trainer.old
    update.trainer.metrics = list(checkpoint.taken.metrics)
    return update


def run_ranks(rank: int, cases: dict[str, Case], folder: Path) -> None:
    """All that two ranks do in the tests: `one` is what a single process left in `folder`, `two` what they leave."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=N_RANKS)
    ranks = Ranks(rank, N_RANKS)
    with in_float32():
        for name, case in cases.items():
            update_twice(case, ranks, folder / name / "two")
            update_twice(case, ranks, folder / name / "two_after_one", begun=folder / name / "one" / "first")
            update_until_killed(case, ranks, folder / name / "killed_two")
            go_on(case, ranks, folder / name / "killed_one", folder / name / "resumed_by_two")
    dist.destroy_process_group()


def run_alone(cases: dict[str, Case], folder: Path) -> None:
    """What a single process does before them."""
    with in_float32():
        for name, case in cases.items():
            update_twice(case, ALONE, folder / name / "one")
            update_until_killed(case, ALONE, folder / name / "killed_one")


def run_after(cases: dict[str, Case], folder: Path) -> None:
    """What a single process does after them."""
    with in_float32():
        for name, case in cases.items():
            update_twice(case, ALONE, folder / name / "one_after_two", begun=folder / name / "two" / "first")
            go_on(case, ALONE, folder / name / "killed_two", folder / name / "resumed_by_one")


@dataclass(frozen=True)
class Left:
    """What an update left in a folder."""

    folder: Path

    @property
    def gradients(self) -> dict[str, torch.Tensor]:
        gradients: dict[str, torch.Tensor] = load_file(self.folder / "gradients.safetensors")
        return gradients

    @property
    def state(self) -> TrainerState:
        return load_state(self.folder / "state")

    def table(self, name: str) -> pl.DataFrame:
        return pl.read_parquet(self.folder / f"{name}.parquet")

    def part(self, name: str) -> dict[str, torch.Tensor]:
        """The tensors `master`, `exp_avg` or `exp_avg_sq` of the state."""
        return {key: value for key, value in self.state.tensors.items() if key.startswith(f"{name}.")}
