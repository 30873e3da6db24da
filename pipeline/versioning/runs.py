"""Runs: a branch `runs/<name>` each, whose iterations are commits tagged `<name>/0003`.

The tags say which commits are iterations, so plain `git commit` and `git tag` make them as well as this module does.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import BadInput
from pipeline.versioning.git import blobs_exist, commit_of, git, run_git
from pipeline.versioning.repository import Repository

BRANCHES = "runs/"
RUN_NAME = re.compile(r"[a-z0-9]([a-z0-9_-]|\.(?!\.|lock$|$))*")
ITERATION_TAG = re.compile(rf"(?P<run>{RUN_NAME.pattern})/(?P<number>\d{{4,}})")


@dataclass(frozen=True)
class Iteration:
    """Iteration `number` of `run`, which is the commit `commit`."""

    run: str
    number: int
    commit: str

    @property
    def name(self) -> str:
        """The tag: `demo/0003`."""
        return tag_name(self.run, self.number)


def tag_name(run: str, number: int) -> str:
    """The tag of an iteration, at least four digits.

    >>> tag_name("demo", 3)
    'demo/0003'
    """
    return f"{run}/{number:04d}"


def check_run_name(name: str) -> None:
    """Raise `BadInput` unless `name` can be a branch, a folder and a part of a tag."""
    if not RUN_NAME.fullmatch(name):
        rule = "a run's name is made of a-z, 0-9, '-', '_' and '.', and begins with a letter or digit"
        raise BadInput(f"run {name!r}", rule, "Choose another name")


def list_runs(repository: Repository) -> list[str]:
    """The names of all runs, those of a clone's `origin` too, sorted."""
    return sorted(_branches(repository))


def branch_of(repository: Repository, run: str) -> str:
    """The full name of the branch of `run`, that of `origin` where there is no local one.

    Raises:
        BadInput: there is no such run; the message names those there are.
    """
    branches = _branches(repository)
    if run not in branches:
        known = ", ".join(sorted(branches)) or "none yet"
        raise BadInput(f"run {run}", f"there is no branch {BRANCHES}{run}; runs here: {known}", "Begin it with new-run")
    return branches[run]


def lineage(repository: Repository, run: str) -> list[Iteration]:
    """The iterations that the tip of `run` comes from, oldest first.

    They may begin in another run, the one it left. Where a run makes an iteration anew that it took from another,
    its own one counts.
    """
    return lineage_of_revision(repository.root, branch_of(repository, run))


def lineage_of_revision(checkout: Path, revision: str) -> list[Iteration]:
    """The iterations that the commit `revision` comes from, itself included, oldest first."""
    log = git("log", "--first-parent", "--format=%H%x09%D", "--decorate=full", revision, "--", cwd=checkout)
    found: list[Iteration] = []
    for line in log.splitlines():
        commit, _, names = line.partition("\t")
        iteration = _named(commit, names)
        if iteration:
            found.append(iteration)
    # Tags such as release/2024 look the same, and stand on commits of no iteration.
    are_locked = blobs_exist([f"{iteration.commit}:dvc.lock" for iteration in found], checkout)
    chosen: list[Iteration] = []
    for iteration, is_locked in zip(found, are_locked, strict=True):
        if is_locked and (not chosen or iteration.number < chosen[-1].number):
            chosen.append(iteration)
    return chosen[::-1]


def _named(commit: str, names: str) -> Iteration | None:
    """The iteration that a commit is by its tags; in `names` they look like `tag: refs/tags/demo/0003`."""
    for name in sorted(names.split(", ")):
        match = ITERATION_TAG.fullmatch(name.removeprefix("tag: refs/tags/")) if name.startswith("tag: ") else None
        if match:
            return Iteration(match["run"], int(match["number"]), commit)
    return None


def resolve(repository: Repository, name: str) -> str:
    """The full id of the commit that `name` means: `demo` (its tip), `demo/3`, `demo/0003`, or any revision of Git.

    Raises:
        BadInput: there is none.
    """
    run, slash, number = name.rpartition("/")
    branches = _branches(repository)
    if slash and number.isdecimal() and run in branches | dict.fromkeys(_tagged_runs(repository)):
        commit = commit_of(f"refs/tags/{tag_name(run, int(number))}", repository.root)
        if commit is None and run in branches:  # the run took it over from the one it left
            numbers = {one.number: one.commit for one in lineage(repository, run)}
            commit = numbers.get(int(number))
        if commit is None:
            remedy = f"`git tag --list '{run}/*'` lists them"
            raise BadInput(f"iteration {name}", f"run {run} has no iteration {int(number)}", remedy)
        return commit
    commit = commit_of(branches.get(name, name), repository.root)
    if commit is None:
        known = ", ".join(sorted(branches)) or "none yet"
        remedy = "Name a run, an iteration such as demo/0003, or a revision that `git log` shows"
        raise BadInput(name, f"it is no run, iteration or commit; runs here: {known}", remedy)
    return commit


def select_iterations(repository: Repository, name: str) -> list[Iteration]:
    """The iterations that `demo`, `demo/0003` or `demo/0003..0010` name, oldest first.

    Raises:
        BadInput: there is no such run, or it has none of them.
    """
    run, _, span = name.partition("/")
    first, dots, last = span.partition("..")
    if (span and not first.isdecimal()) or (dots and not last.isdecimal()):
        raise BadInput(name, "it is no run or iterations of one", "Write demo, demo/0003 or demo/0003..0010")
    line = lineage(repository, run)
    lowest, highest = (int(first), int(last or first)) if span else (0, math.inf)
    chosen = [iteration for iteration in line if lowest <= iteration.number <= highest]
    if not chosen:
        has = f"it has {line[0].number} to {line[-1].number}" if line else "it has none yet"
        raise BadInput(name, f"run {run} has no such iteration; {has}", "Name one of them")
    return chosen


def iteration_named(repository: Repository, name: str) -> Iteration:
    """The one iteration that `demo` (its last), `demo/0003`, a tag, a commit or another revision of Git means.

    Raises:
        BadInput: there is no such thing, or it is no iteration.
    """
    commit = resolve(repository, name)
    line = lineage_of_revision(repository.root, commit)
    # The tip of a run may have edits for the next iteration, which are no part of the last one.
    if not line or (line[-1].commit != commit and name not in _branches(repository)):
        remedy = "Name a run, an iteration such as demo/0003, or a commit that has such a tag"
        raise BadInput(name, f"commit {commit[:12]} is no iteration", remedy)
    return line[-1]


def check_name_is_free(repository: Repository, name: str) -> None:
    """Raise `BadInput` where a run called `name` is or was: its tags would mix with those of the new one."""
    check_run_name(name)
    if name in _branches(repository):
        raise BadInput(f"run {name}", f"the branch {BRANCHES}{name} exists", "Choose another name, or go on with it")
    if name in _tagged_runs(repository):
        last = git("tag", "--list", f"{name}/*", "--sort=version:refname", cwd=repository.root).splitlines()[-1]
        problem = f"the branch is gone, and its tags up to {last} are here"
        raise BadInput(
            f"run {name}", problem, f"`git branch {BRANCHES}{name} {last}` brings it back; or take another name"
        )
    for reference, kind in ((f"refs/tags/{name}", "tag"), ("refs/heads/runs", "branch")):
        if run_git("show-ref", "--quiet", "--verify", reference, cwd=repository.root).returncode == 0:
            problem = (
                f"Git can't have {BRANCHES}{name} and tags {name}/... beside the {kind} {reference.split('/', 2)[2]}"
            )
            raise BadInput(f"run {name}", problem, "Rename it, or choose another name for the run")


def _branches(repository: Repository) -> dict[str, str]:
    """Run -> full name of its branch."""
    listed = git(
        "for-each-ref",
        "--format=%(refname)",
        f"refs/remotes/origin/{BRANCHES}",
        f"refs/heads/{BRANCHES}",
        cwd=repository.root,
    )
    # Sorted by name, refs/heads comes before refs/remotes, and the local one counts.
    return {name.partition(f"/{BRANCHES}")[2]: name for name in sorted(listed.splitlines(), reverse=True)}


def _tagged_runs(repository: Repository) -> list[str]:
    listed = git("for-each-ref", "--format=%(refname:lstrip=2)", "refs/tags/", cwd=repository.root).splitlines()
    return list(dict.fromkeys(match["run"] for name in listed if (match := ITERATION_TAG.fullmatch(name))))


def run_of_checkout(checkout: Path) -> str:
    """The run whose branch is checked out in `checkout`.

    Raises:
        BadInput: HEAD is detached, or on a branch that is no run's.
    """
    branch = run_git("symbolic-ref", "--quiet", "--short", "HEAD", cwd=checkout).stdout.decode().strip()
    if not branch:
        problem = "HEAD is detached, and the iterations of a run are commits on its branch"
        raise BadInput(str(checkout), problem, f"`git switch {BRANCHES}NAME`, or begin a run with `rollbook new-run`")
    if not branch.startswith(BRANCHES):
        remedy = "Begin a run with `rollbook new-run NAME`, and go to its worktree"
        raise BadInput(str(checkout), f"its branch is {branch}, which is not a run's", remedy)
    return branch.removeprefix(BRANCHES)


def check_identity(checkout: Path) -> None:
    """Raise `BadInput` where Git doesn't know who commits, before hours of work that end in a commit."""
    if any(run_git("var", f"GIT_{who}_IDENT", cwd=checkout).returncode for who in ("AUTHOR", "COMMITTER")):
        remedy = "Set it: git config --global user.name 'Your Name' and git config --global user.email you@example.org"
        raise BadInput("git", "it does not know who you are, and an iteration is a commit", remedy)
