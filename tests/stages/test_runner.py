"""How a stage ends: exit code, exit record, metrics, and what is left of its outputs; progress; shared checks."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.errors import BadInput, TransientError
from pipeline.params import Params
from pipeline.table_io import atomic_path
from pipeline.tables import PROMPTS, SELECTION
from stages import runner
from stages.inputs import selected_prompts
from stages.progress import progress
from stages.runner import Result, run_stage
from tests.example_tables import example
from tests.stage_runs import ROOT, Ended, run_here, write_params

DVC_YAML = """
stages:
  fake:
    cmd: python fake_stage.py
    params: [seed, select]
    deps: [fake_stage.py, library, data/input.txt]
  other:
    cmd: python other.py
    deps: [elsewhere.py]
"""
OUTPUT = Path("data/output.txt")

Work = Callable[[Params], Result]
Run = Callable[[Work], Ended]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory: params, a dvc.yaml with the stage `fake`, its code, and an artifact from before."""
    monkeypatch.chdir(tmp_path)
    write_params(tmp_path, {})
    for name, text in (
        ("dvc.yaml", DVC_YAML),
        ("fake_stage.py", "# code\n"),
        ("elsewhere.py", "# code\n"),
        ("library/module.py", "# code\n"),
        ("data/input.txt", "input"),
        ("data/output.txt", "artifact of the run before"),
        ("data/metrics/fake.json", '{"n_things": 1}'),
        (".rollbook/exit/fake.json", '{"code": 0, "kind": "ok", "message": "the run before"}'),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    runner._stage_entry.cache_clear()
    yield tmp_path
    runner._stage_entry.cache_clear()


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda work: run_here("fake", work, monkeypatch, capsys)


def raising(error: BaseException) -> Work:
    def work(params: Params) -> Result:
        with atomic_path(OUTPUT) as temporary:
            temporary.write_text("half")
            raise error

    return work


def doing(act: Callable[[], object]) -> Work:
    def work(params: Params) -> Result:
        act()
        return Result("3 things")

    return work


def artifacts(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in sorted(folder.glob("data/**/*.*"))}


def test_a_stage_that_ends_well_leaves_metrics_and_a_record(run: Run) -> None:
    ended = run(
        lambda params: Result(f"seed {params.seed}", {"n_things": 3, "mean": None, "by_name": {"b": 1, "a": 2}})
    )
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("fake: seed 0 (")
    assert ended.out.endswith(" s)\n")
    assert ended.record == {"code": 0, "kind": "ok", "message": "seed 0"}
    metrics = json.loads(Path("data/metrics/fake.json").read_text())
    assert {key: metrics[key] for key in ("n_things", "mean", "by_name")} == {
        "n_things": 3,
        "mean": None,
        "by_name": {"b": 1, "a": 2},
    }
    assert metrics["seconds"] > 0
    assert 10 < metrics["peak_memory_mb"] < 100_000
    assert list(metrics) == sorted(metrics)


FAILURES: list[tuple[BaseException, int, str, str]] = [
    (BadInput("data/x.parquet", "row 3 is null", "Mend it"), 1, "bad_input", "data/x.parquet: row 3 is null. Mend it."),
    (TransientError("hub", "no network", "Try again"), 75, "transient", "hub: no network. Try again."),
    (ZeroDivisionError("division by zero"), 70, "bug", "ZeroDivisionError: division by zero"),
    (KeyError("name"), 70, "bug", "KeyError: 'name'"),
    (MemoryError(), 70, "bug", "MemoryError: "),
    (OSError(5, "Input/output error"), 70, "bug", "OSError: [Errno 5] Input/output error"),
    (
        OSError(28, "No space left on device", "data/x"),
        1,
        "bad_input",
        "[Errno 28] No space left on device: 'data/x'. Free some space, or make the folder writable",
    ),
    (KeyboardInterrupt(), 130, "interrupted", "interrupted from the keyboard; run it again to go on"),
]


@pytest.mark.parametrize(
    ("error", "code", "kind", "message"), FAILURES, ids=[f"{type(case[0]).__name__}-{case[1]}" for case in FAILURES]
)
def test_a_stage_that_fails_says_how_and_touches_nothing(
    error: BaseException, code: int, kind: str, message: str, folder: Path, run: Run
) -> None:
    before = artifacts(folder)
    ended = run(raising(error))
    assert (ended.code, ended.out) == (code, "")
    assert ended.record == {"code": code, "kind": kind, "message": message}
    assert ended.err.splitlines()[-1] == f"fake: error: {message}"
    assert ("Traceback (most recent call last)" in ended.err) == (kind == "bug")
    assert artifacts(folder) == before


def test_of_several_ranks_only_the_first_speaks_and_writes(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = artifacts(folder)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "0")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(runner, "STARTED", time.monotonic())
    with pytest.raises(FileNotFoundError):  # the record
        run(doing(lambda: print("done")))
    assert artifacts(folder) == before
    monkeypatch.setenv("RANK", "0")
    ended = run(doing(lambda: print("done")))
    assert (ended.code, ended.record["kind"]) == (0, "ok")
    assert ended.out.startswith("done\nfake: 3 things (")
    assert artifacts(folder) != before


def test_of_several_ranks_that_fail_the_first_says_why(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "0")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(runner, "STARTED", time.monotonic())
    first = run(raising(BadInput("data/x.parquet", "row 3 is null", "Mend it")))
    assert first.err == "fake: error: data/x.parquet: row 3 is null. Mend it.\n"
    monkeypatch.setenv("RANK", "0")
    second = run(raising(RuntimeError("Connection closed by peer")))
    assert (second.code, second.err, second.record) == (1, "", first.record)
    assert [file.name for file in (Path(".rollbook/exit")).iterdir()] == ["fake.json"]


def test_an_exit_record_that_can_not_be_written_keeps_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runner, "write_json", refuse)
    with pytest.raises(SystemExit) as left:
        runner._leave("fake", 75, "transient", "no network")
    assert left.value.code == 75
    assert "no exit record" in capsys.readouterr().err


def test_metrics_that_are_not_finite_are_a_bug(folder: Path, run: Run) -> None:
    before = artifacts(folder)
    ended = run(lambda params: Result("done", {"loss": float("nan")}))
    assert (ended.code, ended.record["kind"]) == (70, "bug")
    assert "not JSON compliant" in ended.record["message"]
    assert artifacts(folder) == before


def test_arguments_are_a_usage_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = artifacts(folder)
    monkeypatch.setattr(sys, "argv", ["stages/fake.py", "--fast"])
    with pytest.raises(SystemExit) as caught:
        run_stage("fake", doing(lambda: OUTPUT.write_text("never")))
    assert caught.value.code == 2
    record = json.loads(Path(".rollbook/exit/fake.json").read_text())
    assert record == {"code": 2, "kind": "usage", "message": "stages.fake takes no arguments, but got ['--fast']"}
    assert artifacts(folder) == before


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (None, "params.yaml: there is no such file in "),
        ("seed: [", "params.yaml: it is not valid YAML: "),
        ("seed: 0", "params.yaml: iteration: it is missing"),
    ],
)
def test_bad_params_stop_a_stage_before_its_work(params: str | None, message: str, folder: Path, run: Run) -> None:
    before = artifacts(folder)
    Path("params.yaml").unlink()
    if params is not None:
        Path("params.yaml").write_text(params)
    ended = run(doing(lambda: OUTPUT.write_text("never")))
    assert (ended.code, ended.record["kind"]) == (1, "bad_input")
    assert ended.record["message"].startswith(message)
    assert artifacts(folder) == before


# Edits while a stage runs ---------------------------------------------------------------------------------------------

EDITS: list[tuple[str, Callable[[], object], str]] = [
    ("its own file", lambda: Path("fake_stage.py").write_text("# edited\n"), "fake_stage.py"),
    ("a file of a folder", lambda: Path("library/module.py").write_text("# edited\n"), "library/module.py"),
    ("a new file", lambda: Path("library/new.py").write_text("# new\n"), "library/new.py"),
    ("a file less", lambda: Path("library/module.py").unlink(), "library/module.py"),
    ("a folder less", lambda: Path("library").rename("gone"), "library/module.py"),
    ("a value of its params", lambda: write_params(Path(), {"seed": 1}), "params.yaml: seed"),
    ("a value of a section", lambda: write_params(Path(), {"select.n_prompts": 3}), "params.yaml: select"),
]


@pytest.mark.parametrize(("edit", "where"), [case[1:] for case in EDITS], ids=[case[0] for case in EDITS])
def test_an_edit_while_a_stage_runs_is_refused(edit: Callable[[], object], where: str, run: Run) -> None:
    ended = run(doing(edit))
    assert (ended.code, ended.record["kind"]) == (1, "bad_input")
    assert ended.record["message"].startswith(f"{where}: it was edited while the stage ran. Run `dvc repro` again")
    assert json.loads(Path("data/metrics/fake.json").read_text()) == {"n_things": 1}


UNRELATED: list[tuple[str, Callable[[], object]]] = [
    ("code of another stage", lambda: Path("elsewhere.py").write_text("# edited\n")),
    ("params of another stage", lambda: write_params(Path(), {"rollout.group_size": 2})),
    ("a comment in params", lambda: Path("params.yaml").write_text(Path("params.yaml").read_text() + "# edited\n")),
    ("the same bytes again", lambda: Path("fake_stage.py").write_text("# code\n")),
    ("compiled code", lambda: Path("library/module.cpython-311.pyc").write_bytes(b"x")),
    ("data", lambda: Path("data/input.txt").write_text("DVC looks after data")),
]


@pytest.mark.parametrize("edit", [case[1] for case in UNRELATED], ids=[case[0] for case in UNRELATED])
def test_an_edit_of_something_else_is_none_of_its_business(edit: Callable[[], object], run: Run) -> None:
    assert run(doing(edit)).code == 0


def test_params_that_break_while_a_stage_runs_are_named(run: Run) -> None:
    ended = run(doing(lambda: Path("params.yaml").write_text("seed: [")))
    assert (ended.code, ended.record["kind"]) == (1, "bad_input")
    assert ended.record["message"].startswith("params.yaml: it is not valid YAML")


@pytest.mark.usefixtures("folder")
def test_a_stage_runs_without_a_dvc_yaml(run: Run) -> None:
    Path("dvc.yaml").unlink()
    assert run(doing(lambda: None)).code == 0


# As processes ---------------------------------------------------------------------------------------------------------

FAKE_STAGE = textwrap.dedent(
    """
    import os, time
    from pipeline.errors import BadInput
    from pipeline.table_io import write_text
    from stages.runner import Result, run_stage
    from pathlib import Path

    def fake(params):
        what = os.environ["WHAT"]
        if what == "bad":
            raise BadInput("data/x.parquet", "it is bad", "Mend it")
        if what == "bug":
            [][0]
        if what == "wait":
            print("waiting", flush=True)
            time.sleep(60)
        write_text("new", Path("data/output.txt"))
        return Result("done", {"n_things": 2})

    run_stage("fake", fake)
    """
)


def start(folder: Path, what: str) -> subprocess.Popen[str]:
    (folder / "fake_stage.py").write_text(FAKE_STAGE)
    return subprocess.Popen(
        [sys.executable, "fake_stage.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "WHAT": what},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def record(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / ".rollbook/exit/fake.json").read_text())
    return value


def test_the_exit_code_reaches_the_shell(folder: Path) -> None:
    for what, code, kind in (("ok", 0, "ok"), ("bad", 1, "bad_input"), ("bug", 70, "bug")):
        process = start(folder, what)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, record(folder)["kind"]) == (code, kind)
        assert ("Traceback" in err) == (kind == "bug")
        assert (out != "") == (kind == "ok")
        if kind == "ok":
            assert 0 < json.loads((folder / "data/metrics/fake.json").read_text())["seconds"] < 60
            assert err == ""


def test_a_killed_stage_leaves_no_record_and_the_old_output(folder: Path) -> None:
    process = start(folder, "wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert not (folder / ".rollbook/exit/fake.json").exists()
    assert (folder / OUTPUT).read_text() == "artifact of the run before"


# Progress -------------------------------------------------------------------------------------------------------------


def test_progress_says_nothing_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("rollouts", 10, "tokens") as advance:
        advance(4, 100)
        advance(6, 0)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_progress_shows_counts_and_rate_where_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLBOOK_PROGRESS", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress("rollouts", 10, "tokens") as advance:
        advance(10, 1000)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "rollouts" in captured.err
    assert "10/10" in captured.err
    assert "tokens/s" in captured.err


# Checks across tables -------------------------------------------------------------------------------------------------


def selection_of(prompts: pl.DataFrame, order: list[int], iteration: int = 0) -> pl.DataFrame:
    rows = [(iteration, place, prompts["prompt_id"][i], "epoch 0") for place, i in enumerate(order)]
    return pl.DataFrame(rows, schema=SELECTION.schema, orient="row")


def test_selected_prompts_come_in_the_order_of_the_selection() -> None:
    prompts = example(PROMPTS, 5)
    chosen = selected_prompts(selection_of(prompts, [3, 0, 4]), prompts, 0)
    assert chosen["prompt_id"].to_list() == [prompts["prompt_id"][i] for i in (3, 0, 4)]
    assert chosen["messages"].to_list() == [prompts["messages"].to_list()[i] for i in (3, 0, 4)]


def test_a_selection_of_another_iteration_is_refused() -> None:
    prompts = example(PROMPTS)
    with pytest.raises(BadInput) as caught:
        selected_prompts(selection_of(prompts, [0], iteration=2), prompts, 3)
    problem = "it was made for iteration 2, and params.yaml says 3. Run `dvc repro select`."
    assert str(caught.value) == f"data/selection.parquet: {problem}"


def test_a_selected_prompt_that_is_gone_is_named() -> None:
    prompts = example(PROMPTS)
    selection = selection_of(prompts, [2, 1])
    with pytest.raises(BadInput) as caught:
        selected_prompts(selection, prompts.filter(pl.col("prompt_id") != "prompt_id-000001"), 0)
    assert str(caught.value).startswith(
        "data/selection.parquet: prompt_id 'prompt_id-000001' is not in data/prompts.parquet. "
    )
