"""Which policy `start` makes the reference: one that is here, or one that an older iteration ended with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import BadInput
from pipeline.params import Params, load_params
from stages import paths, start
from tests.stage_runs import write_params
from tests.versioning.fabricated import add_folder, import_run, init, lock_text


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commits of the run `demo`, each with the params of its day; the current directory is its repository."""
    monkeypatch.chdir(tmp_path)
    write_params(tmp_path, {})
    init(tmp_path)
    (tmp_path / "data").mkdir()
    cache = tmp_path / ".dvc/cache"
    policies = [{"adapter_config.json": b"{}", "weights": b"of iteration %d" % k} for k in range(2)]
    return import_run(
        tmp_path, "demo", [lock_text([add_folder(cache, "data/next_policy", files)]) for files in policies]
    )


def params_of(**changes: Any) -> Params:
    write_params(Path(), {f"training.{key}": value for key, value in changes.items()})
    return load_params()


def named() -> str:
    """The folder that is the reference."""
    policy: str = json.loads((paths.REFERENCE / "reference.json").read_text())["policy"]
    return policy


@pytest.mark.usefixtures("demo")
@pytest.mark.parametrize(("reference", "folder"), [("base", "data/base"), ("previous", "data/policy")])
def test_a_policy_that_is_here_is_pointed_at(reference: str, folder: str) -> None:
    start._write_reference(params_of(reference=reference))
    assert named() == folder
    assert [file.name for file in paths.REFERENCE.iterdir()] == ["reference.json"]


@pytest.mark.parametrize("by_tag", [True, False])
def test_the_policy_of_an_iteration_is_fetched(demo: list[str], by_tag: bool) -> None:
    start._write_reference(params_of(reference="demo/0001" if by_tag else demo[1]))
    assert named() == "data/reference/policy"
    assert (Path(named()) / "weights").read_bytes() == b"of iteration 1"


@pytest.mark.usefixtures("demo")
def test_an_iteration_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadInput, match=r"training\.reference: 'demo/0007': there is no such iteration"):
        start._write_reference(params_of(reference="demo/0007"))
    assert not paths.REFERENCE.exists()


@pytest.mark.usefixtures("demo")
def test_an_iteration_of_another_base_model_is_refused() -> None:
    params = params_of(reference="demo/0001")
    other = params.model_copy(update={"base_model": params.base_model.model_copy(update={"path": Path("elsewhere")})})
    with pytest.raises(BadInput, match=r"training\.reference: 'demo/0001' was trained from .*elsewhere"):
        start._write_reference(other)


@pytest.mark.parametrize("reference", ["demo", "runs/demo", "HEAD", "demo/1", "", "abc123", "a b/0001"])
def test_what_may_move_is_no_reference(reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"training\.reference.*a branch would move"):
        params_of(reference=reference)
