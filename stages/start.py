"""Stage `start`: what the iteration starts from, laid out from the base model or taken from the parent's commit."""

from __future__ import annotations

from pathlib import Path

from pipeline.params import Params
from pipeline.policy import copy_policy, create_adapter
from pipeline.seeds import stable_seed
from pipeline.table_io import atomic_path, write_json, write_table
from pipeline.tables import PROMPT_STATS
from pipeline.training.state import TrainerState, load_state, save_state
from pipeline.versioning import fetch_artifact
from stages import paths
from stages.runner import Result, run_stage

INHERITED = {
    paths.NEXT_POLICY: paths.POLICY,
    paths.NEXT_TRAINER_STATE: paths.TRAINER_STATE,
    paths.NEXT_PROMPT_STATS: paths.PROMPT_STATS,
}


def start(params: Params) -> Result:
    """Write `policy`, `reference`, `trainer_state` and `prompt_stats`."""
    if params.parent is None:
        _lay_out(params)
        origin = "the base model"
    else:
        for theirs, ours in INHERITED.items():
            fetch_artifact(theirs, params.parent, ours)
        origin = f"commit {params.parent[:12]}"
    _write_reference(paths.REFERENCE)
    step = load_state(paths.TRAINER_STATE).step
    metrics = {"method": params.training.method, "parent": params.parent, "step": step}
    return Result(f"iteration {params.iteration} from {origin}, {params.training.method}, step {step}", metrics)


def _lay_out(params: Params) -> None:
    if params.training.method == "lora":
        create_adapter(paths.BASE, params.training.lora, stable_seed(params.seed, "adapter"), paths.POLICY)
    else:
        copy_policy(paths.BASE, paths.POLICY)
    save_state(TrainerState(method=params.training.method), paths.TRAINER_STATE)
    write_table(PROMPT_STATS.empty(), paths.PROMPT_STATS, PROMPT_STATS)


def _write_reference(folder: Path) -> None:
    """A pointer, not a copy: the reference is the base model, with any adapter switched off."""
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        write_json({"policy": str(paths.BASE)}, temporary / "reference.json")


if __name__ == "__main__":
    run_stage("start", start)
