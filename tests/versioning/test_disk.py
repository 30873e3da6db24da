from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from dvc_objects.fs.local import LocalFileSystem

from pipeline.errors import BadInput
from pipeline.versioning.artifacts import fetch, has_trainer_state, missing_objects
from pipeline.versioning.disk import STATE_PATHS, prune, sizes
from pipeline.versioning.lockfile import Output
from pipeline.versioning.objects import object_path, parse_folder
from pipeline.versioning.repository import Repository
from tests.versioning.fabricated import (
    OLD_STATE,
    POLICY,
    REWARDS_PATH,
    STATE,
    add_file,
    add_folder,
    import_run,
    init,
    lock_text,
)
from tests.versioning.project import Project, run

STATE_BYTES = 100
LIST_BYTES = 2 + 69 + 2 + 65  # [{"md5": "...", "relpath": "config.json"}, {"md5": "...", "relpath": "weights"}]


class Runs:
    """A repository whose run `demo` has iterations 0 to 4; the state after iteration 3 is called `after 3`."""

    def __init__(self, root: Path, remote: Path | None = None) -> None:
        self.root = root
        self.repository = Repository(root)
        self.cache_dir = root / ".dvc/cache"
        self.locks: list[str] = []
        init(root, remote)
        self.commits = self.add_run("demo", [f"after {number}" for number in range(5)])

    def add_run(self, name: str, states: Sequence[str], before: str = "before all", **place: Any) -> list[str]:
        """The run `name`, whose iterations end with `states`; return its commits."""
        self.locks = [self.lock(name, old, new) for old, new in zip([before, *states], states, strict=False)]
        return import_run(self.root, name, self.locks, **place)

    def lock(self, name: str, old: str, new: str) -> str:
        policy = {"config.json": b"{}", "weights": f"policy {name} {new}".encode()}
        outputs = [
            self.add_state(old, OLD_STATE),
            self.add_state(new, STATE),
            add_folder(self.cache_dir, POLICY, policy),
            add_file(self.cache_dir, REWARDS_PATH, f"rewards of {name} {new}".encode()),
        ]
        return lock_text(outputs)

    def add_state(self, name: str, path: str = STATE) -> Output:
        """A state, whose config.json it shares with every other one and with the policies."""
        return add_folder(self.cache_dir, path, {"config.json": b"{}", "weights": name.ljust(STATE_BYTES).encode()})

    def prune(self, keep_state: int = 2, runs: Sequence[str] | None = None, **options: bool) -> dict[str, int]:
        """Iteration -> bytes of the cache that `prune` frees."""
        return {
            freed.iteration.name: freed.cache_bytes for freed in prune(self.repository, keep_state, runs, **options)
        }

    def states(self) -> set[str]:
        """The states whose weights are in the cache."""
        return states_in(self.cache_dir)


def states_in(folder: Path) -> set[str]:
    files = [file for file in folder.rglob("*") if file.is_file() and file.stat().st_size == STATE_BYTES]
    return {file.read_text().strip() for file in files}


def n_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs") / "repo", Path("../../remote"))


@pytest.fixture
def runs(made: Runs, tmp_path: Path, identity: None) -> Runs:
    """One of the test's own; its remote is the empty folder `remote` beside it."""
    own = object.__new__(Runs)
    own.__dict__ |= made.__dict__
    own.root = Path(shutil.copytree(made.root, tmp_path / "repo"))
    own.repository, own.cache_dir = Repository(own.root), own.root / ".dvc/cache"
    (tmp_path / "remote").mkdir()
    return own


LATEST = {"after 2", "after 3", "after 4"}
"""What iterations 3 and 4 begin and end with."""


# From the cache -------------------------------------------------------------------------------------------------------


def test_a_dry_run_tells_and_does_nothing(runs: Runs) -> None:
    before = n_bytes(runs.cache_dir)
    would_free = runs.prune(dry_run=True)
    assert n_bytes(runs.cache_dir) == before
    assert runs.prune() == would_free
    assert sum(would_free.values()) == before - n_bytes(runs.cache_dir)


def test_older_states_go_and_all_else_stays(runs: Runs) -> None:
    # Iteration 0 has two, what it began and what it ended with; config.json is in use elsewhere.
    assert runs.prune() == {"demo/0000": 2 * (STATE_BYTES + LIST_BYTES), "demo/0001": STATE_BYTES + LIST_BYTES}
    assert runs.states() == LATEST
    missing = missing_objects(runs.repository, runs.commits)
    assert {missed.output.path for missed in missing} == STATE_PATHS
    assert {missed.commit for missed in missing} == set(runs.commits[:3])
    assert [has_trainer_state(runs.repository, commit) for commit in runs.commits] == [False, False, True, True, True]
    assert runs.prune() == {}


@pytest.mark.parametrize(
    ("keep_state", "expected"), [(1, {"after 3", "after 4"}), (3, LATEST | {"after 1"}), (9, None)]
)
def test_as_many_as_asked_for_stay(runs: Runs, keep_state: int, expected: set[str] | None) -> None:
    before = runs.states()
    runs.prune(keep_state)
    assert runs.states() == (expected or before)


@pytest.mark.parametrize("where", ["branch", "tag", "annotated", "stash", "detached", "worktree", "elsewhere"])
def test_what_someone_stands_on_stays(runs: Runs, where: str) -> None:
    def git(*arguments: str) -> None:
        run(runs.root, "git", *arguments)

    if where == "branch":
        git("branch", "mine", "demo/0001")
    elif where == "tag":
        git("tag", "best", "demo/0001")
    elif where == "annotated":
        git("tag", "--annotate", "--message", "best", "best", "demo/0001")
    elif where == "stash":
        git("checkout", "--quiet", "demo/0001")
        (runs.root / "dvc.yaml").write_text("stages: {}")
        git("stash", "--quiet")
        git("checkout", "--quiet", "main")
    elif where == "detached":
        git("checkout", "--quiet", "--detach", "demo/0001")
    elif where == "worktree":
        git("worktree", "add", "--quiet", "--detach", "../beside", "demo/0001")
    else:
        git("update-ref", "refs/remotes/origin/theirs", "demo/0001")
    runs.prune()
    assert runs.states() == LATEST | {"after 0", "after 1"}


def test_a_run_that_was_begun_at_an_older_iteration_keeps_what_it_needs(runs: Runs) -> None:
    run(runs.root, "git", "branch", "runs/new", "demo/0001")
    assert runs.prune(1) == {"demo/0000": STATE_BYTES + LIST_BYTES, "demo/0002": STATE_BYTES + LIST_BYTES}
    assert runs.states() == {"after 0", "after 1", "after 3", "after 4"}


def test_the_last_states_of_another_run_stay(runs: Runs) -> None:
    runs.add_run("strict", ["strict 2", "strict 3", "strict 4"], "after 1", start="demo/0001", first=2)
    runs.prune(1)
    assert runs.states() == {"after 3", "after 4", "strict 3", "strict 4"}


def test_a_fork_leaves_the_states_of_the_run_that_it_left(runs: Runs) -> None:
    runs.add_run("fork", ["fork 5", "fork 6", "fork 7", "fork 8"], before="after 4", start="demo/0004", first=5)
    assert {name.split("/")[0] for name in runs.prune(2, ["fork"])} == {"fork"}
    assert {"after 0", "after 1", "after 2", "after 3", "after 4"} <= runs.states()


def test_a_run_that_was_not_named_keeps_all_its_states(runs: Runs) -> None:
    runs.add_run("strict", ["strict 2", "strict 3", "strict 4"], "after 1", start="demo/0001", first=2)
    runs.prune(1, ["demo"])
    assert runs.states() == {"after 3", "after 4", "after 1", "strict 2", "strict 3", "strict 4"}
    runs.prune(1, ["strict"])  # and iteration 2 of demo begins with `after 1`
    assert runs.states() == {"after 3", "after 4", "after 1", "strict 3", "strict 4"}


def test_the_branch_and_tags_of_a_run_at_its_remote_keep_nothing(runs: Runs) -> None:
    run(runs.root, "git", "update-ref", "refs/remotes/origin/runs/demo", "demo/0001")
    runs.prune()
    assert runs.states() == LATEST


def write_lock(runs: Runs) -> None:
    (runs.root / "dvc.lock").write_text(runs.locks[1])


def write_lock_in_a_worktree(runs: Runs) -> None:
    run(runs.root, "git", "worktree", "add", "--quiet", "../beside", "runs/demo")
    (runs.root.parent / "beside/dvc.lock").write_text(runs.locks[1])


def dvc_add(runs: Runs, name: str = "kept") -> None:
    (runs.root / "deep").mkdir(exist_ok=True)
    entries = [f"- md5: {runs.add_state(state).md5}\n  path: {state}\n" for state in ("after 0", "after 1")]
    (runs.root / f"deep/{name}.dvc").write_text("outs:\n" + "".join(entries))


def dvc_add_on_a_branch(runs: Runs) -> None:
    run(runs.root, "git", "switch", "--quiet", "--create", "mine")
    dvc_add(runs)
    run(runs.root, "git", "add", "deep")
    run(runs.root, "git", "commit", "--quiet", "--message", "one")
    run(runs.root, "git", "rm", "--quiet", "-r", "deep")
    run(runs.root, "git", "commit", "--quiet", "--message", "two")


def publish_in_an_older_iteration(runs: Runs) -> None:
    outputs = [runs.add_state(state, f"data/{state}".replace(" ", "_")) for state in ("after 0", "after 1")]
    pipeline = f"stages: {{publish: {{cmd: a, outs: [{', '.join(output.path for output in outputs)}]}}}}"
    import_run(runs.root, "published", [lock_text(outputs, pipeline), *runs.locks[-3:]])


def have_the_files_in_a_policy(runs: Runs) -> None:
    weights = {state: state.ljust(STATE_BYTES).encode() for state in ("after 0", "after 1")}
    lock = lock_text([add_folder(runs.cache_dir, POLICY, weights)])
    import_run(runs.root, "other", [lock, *runs.locks[-3:]])


@pytest.mark.parametrize(
    "refer",
    [
        write_lock,
        write_lock_in_a_worktree,
        dvc_add,
        dvc_add_on_a_branch,
        publish_in_an_older_iteration,
        have_the_files_in_a_policy,
    ],
)
def test_what_something_else_refers_to_stays(runs: Runs, refer: Callable[[Runs], None]) -> None:
    refer(runs)
    runs.prune()
    assert runs.states() == LATEST | {"after 0", "after 1"}


class KilledError(BaseException):
    pass


def test_killed_at_any_moment_it_finishes_later(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = Path.unlink
    n_kills = 0
    while True:

        def remove_one(path: Path, missing_ok: bool = False, left: list[int] = [1]) -> None:  # noqa: B006
            if not left:
                raise KilledError
            left.pop()
            unlink(path, missing_ok)

        monkeypatch.setattr(Path, "unlink", remove_one)
        try:
            runs.prune()
        except KilledError:
            n_kills += 1
        else:
            break
        assert has_trainer_state(runs.repository, runs.commits[0]) == ("after 0" in runs.states())
        assert all(has_trainer_state(runs.repository, commit) for commit in runs.commits[2:])
    assert n_kills == 3 * 2 - 1  # three states of a file and a list each
    assert runs.states() == LATEST
    assert {missed.output.path for missed in missing_objects(runs.repository, runs.commits)} == STATE_PATHS


@pytest.mark.parametrize(
    ("keep_state", "names", "options", "message"),
    [
        (0, None, {}, "keep_state: 0 is less than 1"),
        (2, ["demo", "dmeo"], {}, "run dmeo: there is no branch runs/dmeo"),
    ],
)
def test_what_makes_no_sense_is_refused(
    runs: Runs, keep_state: int, names: list[str] | None, options: dict[str, bool], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        runs.prune(keep_state, names, **options)


# From the remote ------------------------------------------------------------------------------------------------------


@pytest.fixture
def pushed(runs: Runs) -> Runs:
    """All objects are in the remote too."""
    shutil.copytree(runs.cache_dir / "files", runs.root.parent / "remote/files")
    return runs


def remote_of(runs: Runs) -> Path:
    return runs.root.parent / "remote"


def test_the_remote_is_left_alone_unless_asked_for(pushed: Runs) -> None:
    everything = n_bytes(remote_of(pushed))
    pushed.prune()
    assert n_bytes(remote_of(pushed)) == everything
    assert fetch(pushed.repository, pushed.commits[:1]).n_objects == 2 * 2
    assert has_trainer_state(pushed.repository, pushed.commits[0])
    pushed.prune(remote=True, dry_run=True)
    assert n_bytes(remote_of(pushed)) == everything


@pytest.mark.parametrize("is_local_too", [True, False])
def test_older_states_go_from_the_remote(pushed: Runs, is_local_too: bool) -> None:
    if not is_local_too:
        shutil.rmtree(pushed.cache_dir / "files")
    before = n_bytes(remote_of(pushed))
    freed = prune(pushed.repository, remote=True)
    assert [entry.iteration.name for entry in freed] == ["demo/0000", "demo/0001"]
    assert (
        sum(entry.remote_bytes for entry in freed)
        == before - n_bytes(remote_of(pushed))
        == 3 * (STATE_BYTES + LIST_BYTES)
    )
    assert states_in(remote_of(pushed)) == LATEST
    left = fetch(pushed.repository, pushed.commits).missing
    assert {missed.output.path for missed in left} == STATE_PATHS
    assert {missed.commit for missed in left} == set(pushed.commits[:3])
    assert prune(pushed.repository, remote=True) == []


def test_a_remote_never_has_the_list_of_a_folder_without_its_files(
    pushed: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DVC would take it for whole, and push no file of it again."""
    remove = LocalFileSystem.remove
    remote = remote_of(pushed)
    n_kills = 0

    def remove_one(system: LocalFileSystem, path: str) -> None:
        if n_removed:
            raise KilledError
        n_removed.append(path)
        remove(system, path)

    monkeypatch.setattr(LocalFileSystem, "remove", remove_one)
    while True:
        n_removed: list[str] = []
        try:
            prune(pushed.repository, remote=True)
            break
        except KilledError:
            n_kills += 1
        for listing in remote.rglob("*.dir"):
            files = parse_folder(listing.read_bytes(), "").values()
            assert all(object_path(remote, md5).is_file() for md5 in files)
    assert n_kills == 3 * 2 - 1
    assert states_in(remote) == pushed.states() == LATEST


def test_a_remote_without_the_file_of_a_kept_folder_is_asked_for_its_list(pushed: Runs) -> None:
    have_the_files_in_a_policy(pushed)
    shutil.copytree(pushed.cache_dir / "files", remote_of(pushed) / "files", dirs_exist_ok=True)
    shutil.rmtree(pushed.cache_dir / "files")
    prune(pushed.repository, remote=True)
    assert states_in(remote_of(pushed)) == LATEST | {"after 0", "after 1"}


def test_without_a_remote_there_is_none_to_prune(tmp_path: Path, identity: None) -> None:
    runs = Runs(tmp_path / "repo")
    before = n_bytes(runs.cache_dir)
    with pytest.raises(BadInput, match="there is no default remote"):
        runs.prune(remote=True)
    assert n_bytes(runs.cache_dir) == before


# Sizes, and DVC afterwards --------------------------------------------------------------------------------------------


def test_the_size_of_a_run_is_that_of_its_objects_that_are_here(runs: Runs) -> None:
    runs.add_run("strict", ["strict 2"], "after 1", start="demo/0001", first=2)
    # A state is 102 bytes, a policy 2 + len("policy demo after 0"), a rewards file len("rewards of demo after 0").
    demo, strict = 6 * 102 + 5 * 21 + 5 * 23, 4 * 102 + 2 * 21 + 24 + 2 * 23 + 26
    assert sizes(runs.repository, ["demo", "strict"]) == {"demo": demo, "strict": strict}
    runs.prune()
    # `before all` goes, which both have; `after 0` and `after 1` stay with the last two iterations of strict.
    assert sizes(runs.repository, ["demo", "strict"]) == {"demo": demo - 102, "strict": strict - 102}


def test_dvc_goes_on_after_a_prune(project: Project) -> None:
    """A pruned iteration is run again, though DVC's cache of runs still says that it has its outputs."""
    project.git("switch", "--quiet", "--create", "runs/demo")
    params = project.root / "params.yaml"
    first = params.read_text()
    for number in range(3):
        params.write_text(first.replace("iteration: 0", f"iteration: {number}"))
        project.repro(project.root)
        project.git("add", "--all")
        project.git("commit", "--quiet", "--message", f"iteration {number}")
        project.git("tag", f"demo/{number:04d}")
    freed = prune(project.repository, 1)
    assert [entry.iteration.name for entry in freed] == ["demo/0000"]
    assert "up to date" in project.repro(project.root)
    project.git("checkout", "--quiet", "demo/0000")
    assert "Running stage 'make'" in project.repro(project.root)
    assert project.git("status", "--porcelain") == ""
    assert missing_objects(project.repository, ["demo/0000"]) == []


def test_an_object_that_is_kept_is_not_touched(runs: Runs) -> None:
    kept = object_path(runs.cache_dir, runs.add_state("after 4").md5)
    before = kept.stat()
    runs.prune(1)
    after = kept.stat()
    assert (after.st_mtime_ns, after.st_mode, after.st_ino) == (before.st_mtime_ns, before.st_mode, before.st_ino)
