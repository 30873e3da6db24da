from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from pipeline.errors import BadInput, TransientError
from pipeline.versioning.artifacts import (
    fetch,
    fetch_artifact,
    has_trainer_state,
    iteration_name,
    missing_objects,
    sync_objects,
)
from pipeline.versioning.lockfile import Output
from pipeline.versioning.objects import md5s_of, object_path, parse_folder
from pipeline.versioning.repository import Repository
from tests.versioning.fabricated import (
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

FILES = {"config.json": b"{}", "deep/weights": b"weights" * 1_000}


class Store:
    """A repository of two iterations of the run `demo`, the current directory; `commits` are theirs."""

    def __init__(self, root: Path, remote: Path | None) -> None:
        self.repository = Repository(root)
        self.cache_dir = root / ".dvc/cache"
        init(root, remote)
        self.outputs = [self._make(number) for number in range(2)]
        self.commits = import_run(root, "demo", [lock_text([*outputs.values()]) for outputs in self.outputs])

    def _make(self, number: int) -> dict[str, Output]:
        state = {"state.json": b"{}", "weights": b"state %d" % number}
        outputs = (
            add_folder(self.cache_dir, POLICY, {**FILES, "number": b"%d" % number}),
            add_folder(self.cache_dir, STATE, state),
            add_file(self.cache_dir, REWARDS_PATH, b"rewards %d" % number),
            Output("data/history.csv", "0" * 32, 9),  # in Git, and so not in the cache
        )
        return {output.path: output for output in outputs}

    def object(self, number: int, path: str, place: int = 0) -> Path:
        """The file of an object of an iteration's output; of a folder, `place` 0 is its list."""
        return object_path(self.cache_dir, md5s_of(self.cache_dir, self.outputs[number][path])[place])

    def move_to(self, remote: Path) -> None:
        """Have all objects in the remote, and none in the cache."""
        shutil.move(self.cache_dir / "files", remote / "files")


@pytest.fixture
def local(tmp_path: Path, identity: None, monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store(tmp_path / "repo", None)
    monkeypatch.chdir(tmp_path / "repo")
    return store


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    (tmp_path / "remote").mkdir()
    return tmp_path / "remote"


@pytest.fixture
def store(tmp_path: Path, remote: Path, identity: None, monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store(tmp_path / "repo", remote)
    monkeypatch.chdir(tmp_path / "repo")
    return store


def damage(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)
    path.chmod(0o444)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


# Out of the cache -----------------------------------------------------------------------------------------------------


def test_a_folder_comes_whole_and_writable_in_place_of_the_old_one(local: Store) -> None:
    target = Path("data/policy")
    target.mkdir(parents=True)
    (target / "older").write_bytes(b"")
    fetch_artifact(Path(POLICY), local.commits[1], target)
    assert contents(target) == {**FILES, "number": b"1"}
    assert all(file.stat().st_mode & stat.S_IWUSR for file in target.rglob("*"))
    assert list(Path("data").iterdir()) == [target]


def test_a_file_comes_from_the_commit_that_is_named(local: Store) -> None:
    for number, commit in enumerate(local.commits):
        fetch_artifact(Path(REWARDS_PATH), commit, Path("out"))
        assert Path("out").read_bytes() == b"rewards %d" % number
    assert Path("out").stat().st_mode & stat.S_IWUSR


def test_a_folder_that_dvc_stored_comes_back(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.repro(project.root)
    project.git("add", "--all")
    project.git("commit", "--quiet", "--message", "an iteration")
    monkeypatch.chdir(project.root)
    fetch_artifact(Path(STATE), "HEAD", Path("out"))
    assert contents(Path("out")) == {"state": b"state before 1"}
    assert missing_objects(project.repository, ["HEAD"]) == []


@pytest.mark.parametrize(("path", "place"), [(REWARDS_PATH, 0), (POLICY, 0), (POLICY, 1)])
def test_a_damaged_object_is_named_and_what_was_there_stays(local: Store, path: str, place: int) -> None:
    file = local.object(1, path, place)
    expected = hashlib.md5(file.read_bytes()).hexdigest()
    content = file.read_bytes()[:-1] + b"!"
    damage(file, content)
    target = Path("out")
    target.write_text("before")
    found = hashlib.md5(content).hexdigest()
    with pytest.raises(BadInput) as refused:
        fetch_artifact(Path(path), local.commits[1], target)
    assert str(refused.value) == (
        f"{file}: its md5 is {found}, and should be {expected}: it is damaged. Remove it, then "
        f"`rollbook fetch {'demo/0001' if place or path == REWARDS_PATH else 'RUN/K'}`, or run that iteration again."
    )
    assert target.read_text() == "before"
    assert not list(Path().glob(".tmp-*"))


@pytest.mark.parametrize("path", ["../outside", "/outside", "a/../../outside"])
def test_a_list_that_leaves_its_folder_is_refused(path: str) -> None:
    entries = json.dumps([{"md5": "0" * 32, "relpath": path}])
    with pytest.raises(BadInput, match=r"cd\.dir: it is no list of the files in a folder"):
        parse_folder(entries.encode(), "cd.dir")


def test_an_unknown_commit_or_path_is_named(local: Store) -> None:
    with pytest.raises(BadInput, match="commit nowhere: it is not in this repository"):
        fetch_artifact(Path(POLICY), "nowhere", Path("out"))
    with pytest.raises(BadInput, match=r"data/no in commit .*: its dvc\.lock has no such output"):
        fetch_artifact(Path("data/no"), local.commits[0], Path("out"))


def test_without_a_remote_the_message_says_how_to_get_one(local: Store) -> None:
    file = local.object(0, POLICY, 1)
    file.unlink()
    with pytest.raises(BadInput) as refused:
        fetch_artifact(Path(POLICY), local.commits[0], Path("out"))
    assert str(refused.value) == (
        f"data/next_policy of demo/0000: DVC's cache lacks its objects ({file.parent.name}{file.name}), and there is "
        "no remote. Name a remote that has it with `dvc remote add --default NAME URL`, then `rollbook fetch "
        "demo/0000`."
    )
    with pytest.raises(
        BadInput, match=r"\.dvc/config: there is no default remote\. .*dvc remote add --default NAME URL"
    ):
        fetch(local.repository, local.commits)


# What is missing ------------------------------------------------------------------------------------------------------


def test_what_is_missing_is_told_by_commit_and_object(local: Store) -> None:
    assert missing_objects(local.repository, local.commits) == []
    gone = {path: local.object(0, *path) for path in ((POLICY, 3), (STATE, 0), (REWARDS_PATH, 0))}
    for file in gone.values():
        file.unlink()
    found = missing_objects(local.repository, local.commits)
    assert {(missing.commit, missing.output.path): missing.md5s for missing in found} == {
        (local.commits[0], path): (f"{file.parent.name}{file.name}",) for (path, _), file in gone.items()
    }
    assert [missing.output.path for missing in missing_objects(local.repository, local.commits, [STATE])] == [STATE]
    assert missing_objects(local.repository, local.commits[1:]) == []


def test_a_trainer_state_is_there_or_not(local: Store) -> None:
    assert has_trainer_state(local.repository, local.commits[0])
    local.object(0, STATE, 2).unlink()  # the list is left
    assert not has_trainer_state(local.repository, local.commits[0])
    assert has_trainer_state(local.repository, local.commits[1])


def test_an_iteration_has_its_name_and_another_commit_its_id(local: Store) -> None:
    main = run(Path(), "git", "rev-parse", "main")
    assert [iteration_name(commit) for commit in (*local.commits, main)] == ["demo/0000", "demo/0001", main[:12]]


# From the remote ------------------------------------------------------------------------------------------------------


def test_the_artifacts_of_the_commits_come_and_no_others(store: Store, remote: Path) -> None:
    store.move_to(remote)
    fetched = fetch(store.repository, store.commits[:1])
    # The lists of two folders, three and two files, of which `{}` is in both, and the rewards.
    assert (fetched.n_objects, fetched.missing) == (2 + 3 + 2 - 1 + 1, [])
    assert fetched.n_bytes == sum(file.stat().st_size for file in store.cache_dir.rglob("*") if file.is_file())
    assert missing_objects(store.repository, store.commits[:1]) == []
    assert {missing.output.path for missing in missing_objects(store.repository, store.commits[1:])} == {
        POLICY,
        STATE,
        REWARDS_PATH,
    }
    assert fetch(store.repository, store.commits[:1]).n_objects == 0
    assert not any(file.stat().st_mode & stat.S_IWUSR for file in store.cache_dir.rglob("*") if file.is_file())


def test_an_artifact_that_the_cache_lacks_comes_from_the_remote(store: Store, remote: Path) -> None:
    store.move_to(remote)
    fetch_artifact(Path(POLICY), store.commits[1], Path("out"))
    assert contents(Path("out")) == {**FILES, "number": b"1"}
    assert [missing.output.path for missing in missing_objects(store.repository, store.commits[1:])] == [
        REWARDS_PATH,
        STATE,
    ]


def test_what_the_remote_lacks_too_is_told(store: Store, remote: Path) -> None:
    store.object(0, STATE, 2).unlink()
    store.move_to(remote)
    fetched = fetch(store.repository, store.commits)
    assert [(missing.commit, missing.output.path) for missing in fetched.missing] == [(store.commits[0], STATE)]
    with pytest.raises(BadInput, match=r"next_trainer_state of demo/0000: neither .* nor the remote .*demo/0000"):
        fetch_artifact(Path(STATE), store.commits[0], Path("out"))


def test_a_damaged_object_of_the_remote_is_named_and_not_taken(store: Store, remote: Path) -> None:
    damaged = store.object(0, REWARDS_PATH)
    damage(damaged, b"rewards of someone else")
    store.move_to(remote)
    with pytest.raises(BadInput, match=f"{damaged.parent.name}{damaged.name} is damaged"):
        fetch(store.repository, store.commits, [REWARDS_PATH])
    assert not damaged.exists()


def test_a_remote_that_fails_may_work_on_another_try(store: Store, remote: Path) -> None:
    file = store.object(0, REWARDS_PATH)
    store.move_to(remote)
    in_remote = remote / file.relative_to(store.cache_dir)
    in_remote.unlink()
    in_remote.mkdir()  # no file can be read from it
    with pytest.raises(TransientError, match=r"DVC's remote: .*Is a directory"):
        fetch(store.repository, store.commits, [REWARDS_PATH])


# Onto the disk --------------------------------------------------------------------------------------------------------


def test_objects_are_flushed_with_their_folders(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append(Path(f"/proc/self/fd/{file}").readlink()))
    lock = lock_text([*local.outputs[0].values()])
    sync_objects(local.repository, lock)
    objects = [local.object(0, POLICY, place) for place in range(4)] + [local.object(0, REWARDS_PATH)]
    assert {*objects, *(file.parent for file in objects)} <= set(flushed)


def test_a_torn_object_is_no_part_of_a_commit(local: Store) -> None:
    torn = local.object(0, REWARDS_PATH)
    damage(torn, b"rew")
    with pytest.raises(BadInput, match=rf"{torn}: it has 3 bytes, and data/rewards\.parquet has 9: it is damaged"):
        sync_objects(local.repository, lock_text([*local.outputs[0].values()]))
