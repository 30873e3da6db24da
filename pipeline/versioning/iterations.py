"""The iteration under way in a checkout: where it stands, how it is committed, how the next one begins."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import BadInput, TransientError
from pipeline.params import PARAMS_FILE, load_params, parse_params
from pipeline.params_edit import differing_keys, edit_params
from pipeline.table_io import write_text
from pipeline.versioning.artifacts import sync_objects
from pipeline.versioning.changes import RECORDED, changed_files, refuse_changes
from pipeline.versioning.dvc import dvc, dvc_error
from pipeline.versioning.git import DURABLE, commit_of, file_at_commit, git
from pipeline.versioning.lockfile import PIPELINE_FILE, declared_outputs
from pipeline.versioning.repository import Repository, has_remote
from pipeline.versioning.runs import (
    Iteration,
    check_identity,
    lineage_of_revision,
    run_of_checkout,
    tag_name,
)

TRAILER = "Rollbook-Iteration"
ADVANCED = ("iteration", "parent", "start.fresh_optimizer")
"""The keys that `advance` sets."""
DATA_METRICS = Path("data/metrics/report.json")


@dataclass(frozen=True)
class Position:
    """Where the checkout of `run` stands: `number` is the iteration of params.yaml.

    `committed` is that iteration, or None while it is under way.
    """

    run: str
    committed: Iteration | None
    number: int


def position(checkout: Path) -> Position:
    """Where `checkout` stands, after the tag is put on a commit that was made just before a kill.

    Raises:
        BadInput: HEAD is detached or on no run's branch; params.yaml names a parent that is not the iteration before
            in this branch, as when the branch was moved.
    """
    run = run_of_checkout(checkout)
    params = load_params(checkout / PARAMS_FILE)
    _finish_tag(checkout)
    line = lineage_of_revision(checkout, "HEAD")
    tip = line[-1] if line and line[-1].number == params.iteration else None
    # Commits on top of an iteration that the run took from another one are a what-if: it is made anew with them. On
    # top of one of its own, they are edits for the next.
    is_own = tip is not None and (tip.run == run or tip.commit == commit_of("HEAD", checkout))
    committed = tip if is_own else None
    before = next((one for one in reversed(line) if one.number < params.iteration), None)
    if params.parent != (before.commit if before and params.parent else None):
        there = f"{before.name} ({before.commit[:12]})" if before else "no iteration"
        problem = f"{params.parent}, but the branch runs/{run} has {there} before iteration {params.iteration}"
        remedy = (
            f"If the branch was moved or a tag deleted, `git reflog runs/{run}` shows what was there; in a clone "
            "that is shallow or has no tags, `git fetch --unshallow --tags`"
        )
        raise BadInput(f"{checkout / PARAMS_FILE}: parent", problem, remedy)
    if committed is None:
        _check_tag_is_free(checkout, tag_name(run, params.iteration))
    return Position(run, committed, params.iteration)


def advance(checkout: Path) -> int:
    """Begin the next iteration in params.yaml, once the present one is committed; return its number.

    Run twice, it moves once.

    Raises:
        BadInput: the iteration is not committed, or files were edited since.
    """
    where = position(checkout)
    if where.committed is None:
        line = lineage_of_revision(checkout, "HEAD")
        if line and line[-1].number + 1 == where.number:
            return where.number
        problem = f"iteration {where.number} is not committed yet"
        raise BadInput(f"run {where.run}", problem, "`dvc repro`, then `rollbook commit`")
    remedy = "Commit the iteration again, or undo the edits; edits for the next iteration come after `rollbook advance`"
    refuse_changes(checkout, changed_files(checkout), remedy)
    file = checkout / PARAMS_FILE
    changes = {"iteration": where.number + 1, "parent": where.committed.commit}
    text = file.read_text(encoding="utf-8")
    if parse_params(text, str(file)).start.fresh_optimizer:
        changes["start.fresh_optimizer"] = False
    write_text(edit_params(text, changes, str(file)), file)
    return where.number + 1


def unrecorded_edits(checkout: Path) -> list[str]:
    """Edited files, and edited keys as `params.yaml: seed`, that are neither committed nor an iteration's doing."""
    # DVC has Git ignore an output once its stage has ended; where it was killed before, Git still sees it.
    outputs = declared_outputs((checkout / PIPELINE_FILE).read_text(encoding="utf-8"))
    edits = changed_files(checkout, (*RECORDED, *outputs))
    now = load_params(checkout / PARAMS_FILE)
    text = file_at_commit("HEAD", PARAMS_FILE, checkout).decode("utf-8")
    committed = parse_params(text, f"{PARAMS_FILE} in HEAD")
    keys = differing_keys(committed.model_dump(mode="json"), now.model_dump(mode="json"))
    return edits + [f"{PARAMS_FILE}: {key}" for key in keys if key not in ADVANCED]


def stale_stages(checkout: Path) -> list[str]:
    """The stages that `dvc status` finds changed, in its order; none where everything is up to date.

    `dvc repro --single-item` runs a stage on whatever lies before it, so that only this tells that all fit together.
    """
    done = dvc("status", "--json", cwd=checkout)
    if done.returncode:
        raise BadInput("dvc status", dvc_error(done.stderr), "Mend it, then run the same command again")
    return list(json.loads(done.stdout or "{}"))


def commit_iteration(checkout: Path, include_changes: bool = False) -> Iteration:
    """Commit and tag the iteration that lies finished in `checkout`; return it. Run twice, it commits once.

    Raises:
        BadInput: a stage is out of date; other files than an iteration's were edited, which `include_changes` commits
            along; the tag exists on another commit; Git does not know who commits.
    """
    params = load_params(checkout / PARAMS_FILE)
    where = position(checkout)
    if where.committed and not changed_files(checkout):
        return where.committed
    check_identity(checkout)
    name = tag_name(where.run, params.iteration)
    _check_tag_is_free(checkout, name)
    if not include_changes:
        others = changed_files(checkout, RECORDED)
        refuse_changes(checkout, others, "Undo the edits, or give --include-changes to commit them with the iteration")
    stale = stale_stages(checkout)
    if stale:
        problem = f"these stages are out of date: {', '.join(stale)}"
        raise BadInput(f"iteration {name}", problem, "Run `dvc repro` first")
    sync_objects(Repository.find(checkout), (checkout / "dvc.lock").read_text(encoding="utf-8"))
    git("add", "--all", "--", *(":/" if include_changes else path for path in _existing(checkout)), cwd=checkout)
    message = f"{name}: {_headline(checkout, params.iteration)}\n\n{TRAILER}: {name}"
    git(*DURABLE, "commit", "--quiet", "--no-verify", "--allow-empty", "--message", message, cwd=checkout)
    commit = git("rev-parse", "HEAD", cwd=checkout)
    _tag(checkout, name, commit)
    return Iteration(where.run, params.iteration, commit)


def push_artifacts(checkout: Path) -> bool:
    """`dvc push` what `checkout` has, where a remote is configured; whether there is one.

    Raises:
        TransientError: the push failed; everything is committed, and the same command pushes again.
    """
    if not has_remote(checkout):
        return False
    done = dvc("push", cwd=checkout)
    if done.returncode:
        raise TransientError("dvc push", dvc_error(done.stderr), "All is committed here; the same command pushes again")
    return True


def _existing(checkout: Path) -> list[str]:
    return [path for path in RECORDED if (checkout / path).exists()]


def _finish_tag(checkout: Path) -> None:
    """Put the tag on HEAD that its message announces, if a kill came between the two."""
    said = git("log", "-1", f"--format=%(trailers:key={TRAILER},valueonly)", "HEAD", cwd=checkout)
    if said and commit_of(f"refs/tags/{said}", checkout) is None:
        _tag(checkout, said, git("rev-parse", "HEAD", cwd=checkout))


def _tag(checkout: Path, name: str, commit: str) -> None:
    git(*DURABLE, "update-ref", f"refs/tags/{name}", commit, "", cwd=checkout)


def _check_tag_is_free(checkout: Path, name: str) -> None:
    tagged = commit_of(f"refs/tags/{name}", checkout)
    if tagged:
        remedy = (
            f"Begin another run for another try: `rollbook new-run NAME --from {name}`; if the branch was moved back, "
            f"`git reset --hard {name}`"
        )
        raise BadInput(f"iteration {name}", f"it is committed already, as {tagged[:12]}", remedy)


def _headline(checkout: Path, iteration: int) -> str:
    """What happened, for `git log --oneline`."""
    try:
        row = json.loads((checkout / DATA_METRICS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(str(DATA_METRICS), "there is no such file", "Run `dvc repro` first") from None
    if row["iteration"] != iteration:
        problem = f"it is of iteration {row['iteration']}, and params.yaml says {iteration}"
        raise BadInput(str(DATA_METRICS), problem, "Run `dvc repro` first")
    named = {"pass rate": row["pass_rate"], "held-out": row["eval_pass_at_1"], "reward": row["reward_mean"]}
    return ", ".join(f"{name} {value:.3f}" for name, value in named.items() if value is not None) or "no verdicts"
