"""Stage `start`: what the iteration starts from, laid out from the base model or taken from the parent's commit."""

from __future__ import annotations

from pipeline.errors import BadInput
from pipeline.history_rows import read_history
from pipeline.params import PARAMS_FILE, Params, parse_params
from pipeline.seeds import stable_seed
from pipeline.table_io import atomic_path, write_json, write_table
from pipeline.tables import PROMPT_STATS
from pipeline.training.state_file import StateCounts, read_counts, write_counts
from pipeline.versioning.artifacts import fetch_artifact
from pipeline.versioning.git import commit_of, file_at_commit
from stages import paths
from stages.runner import Result, run_stage

INHERITED = {paths.NEXT_POLICY: paths.POLICY, paths.NEXT_PROMPT_STATS: paths.PROMPT_STATS}
PARENTS_STATE, PARENTS_HISTORY, OLDER_POLICY = paths.NEXT_TRAINER_STATE, paths.HISTORY, paths.NEXT_POLICY


def start(params: Params) -> Result:
    """Write `policy`, `reference`, `trainer_state` and `prompt_stats`."""
    if params.parent is None:
        _lay_out(params)
        origin = "the base model"
    else:
        _check_parent(params, params.parent)
        for theirs, ours in INHERITED.items():
            fetch_artifact(theirs, params.parent, ours)
        origin = f"commit {params.parent[:12]}"
        if params.start.fresh_optimizer:
            _begin_state_afresh(params, params.parent)
            origin += " with a fresh optimizer"
        else:
            fetch_artifact(PARENTS_STATE, params.parent, paths.TRAINER_STATE)
    _write_reference(params)
    step = read_counts(paths.TRAINER_STATE).step
    metrics = {"method": params.training.method, "parent": params.parent, "step": step}
    return Result(f"iteration {params.iteration} from {origin}, {params.training.method}, step {step}", metrics)


def _check_parent(params: Params, parent: str) -> None:
    """Raise `BadInput` unless the parent is the iteration before, of the same model trained in the same way."""
    theirs = _params_of(parent)
    if theirs.iteration + 1 != params.iteration:
        problem = f"{params.iteration}, but the parent {parent[:12]} holds iteration {theirs.iteration}"
        raise BadInput(
            f"{PARAMS_FILE}: iteration", problem, f"Set it to {theirs.iteration + 1}, or name another parent"
        )
    for key, ours, other in (
        ("base_model", params.base_model, theirs.base_model),
        ("training.method", params.training.method, theirs.training.method),
        ("training.lora", params.training.lora, theirs.training.lora),
    ):
        if ours != other:
            problem = f"it is {ours!r}, and the parent {parent[:12]} was made with {other!r}"
            raise BadInput(f"{PARAMS_FILE}: {key}", problem, "Keep it as it was, or begin a new run")


def _lay_out(params: Params) -> None:
    # Here, since only the first iteration needs it, and it takes seconds to import torch.
    from pipeline.policy import copy_policy, create_adapter

    if params.training.method == "lora":
        create_adapter(paths.BASE, params.training.lora, stable_seed(params.seed, "adapter"), paths.POLICY)
    else:
        copy_policy(paths.BASE, paths.POLICY)
    _write_empty_state(StateCounts(params.training.method))
    write_table(PROMPT_STATS.empty(), paths.PROMPT_STATS, PROMPT_STATS)


def _begin_state_afresh(params: Params, parent: str) -> None:
    """The parent's count of steps without its moments; the masters are what its policy holds."""
    where = f"{PARENTS_HISTORY} in commit {parent[:12]}"
    rows = read_history(file_at_commit(parent, PARENTS_HISTORY).decode("utf-8"), where)
    step = sum(int(row["n_steps"] or 0) for row in rows)
    _write_empty_state(StateCounts(params.training.method, step))


def _write_empty_state(counts: StateCounts) -> None:
    """A state without masters and moments: the update takes the masters from the policy."""
    with atomic_path(paths.TRAINER_STATE) as temporary:
        temporary.mkdir()
        write_counts(counts, temporary)


def _write_reference(params: Params) -> None:
    """Write which policy is the reference: a pointer to one that is here, or beside it one that is fetched."""
    reference = params.training.reference
    here = {"base": paths.BASE, "previous": paths.POLICY}
    with atomic_path(paths.REFERENCE) as temporary:
        temporary.mkdir()
        if reference not in here:
            commit = _reference_commit(params)
            fetch_artifact(OLDER_POLICY, commit, temporary / "policy")
        write_json({"policy": str(here.get(reference, paths.REFERENCE / "policy"))}, temporary / "reference.json")


def _reference_commit(params: Params) -> str:
    """The commit of the iteration that `training.reference` names, once it is sure that it shares the base model."""
    name = params.training.reference
    commit = commit_of(name)
    if commit is None:
        problem = f"{name!r}: there is no such iteration in this repository"
        raise BadInput(f"{PARAMS_FILE}: training.reference", problem, "See `rollbook runs` for those that there are")
    theirs = _params_of(commit)
    if theirs.base_model != params.base_model:
        problem = f"{name!r} was trained from {theirs.base_model!r}, and this run is from {params.base_model!r}"
        raise BadInput(f"{PARAMS_FILE}: training.reference", problem, "Name an iteration of the same base model")
    return commit


def _params_of(commit: str) -> Params:
    text = file_at_commit(commit, PARAMS_FILE).decode("utf-8", "replace")
    return parse_params(text, f"{PARAMS_FILE} in commit {commit[:12]}")


if __name__ == "__main__":
    run_stage("start", start)
