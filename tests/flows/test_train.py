"""Training as a flow: what it makes of a run, and when it stops."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.errors import BadInput
from pipeline.versioning.guards import trainer_lock
from pipeline.versioning.iterations import advance, position
from prefect_flows.train import HealthStop, check_health, count_committed, iterate, train
from tests.flows.quick_project import QuickProject

pytestmark = pytest.mark.slow
STOP = {"report.on_health.kl_bounded": "stop"}


def test_iterations_are_commits_with_tags_and_the_same_call_again_does_nothing(
    here: QuickProject, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "said")
    monkeypatch.setattr("prefect_flows.train.get_run_logger", lambda: logging.getLogger("said"))
    settings = {**here.seed("demo"), "evaluate.n_prompts": 64}
    here.order_trouble("evaluate", "bad_input once")
    state = train("demo", 2, settings=settings, return_state=True)
    assert "evaluate: params.yaml: score: it is wrong. Mend it." in str(state.message)
    assert here.tags("demo") == []

    train("demo", 2, settings=settings)
    assert here.tags("demo") == ["demo/0000", "demo/0001"]
    commits = here.git("log", "--format=%s", "runs/demo").splitlines()
    assert [line.partition(":")[0] for line in commits[:3]] == ["demo/0001", "demo/0000", "demo"]
    assert "n_prompts: 64" in here.git("show", "demo/0001:params.yaml")
    assert here.git("status", "--porcelain") == ""

    assert "demo: has its 2 iterations already" not in caplog.messages
    train("demo", 2, settings=settings)
    assert "demo: has its 2 iterations already" in caplog.messages
    assert here.git("log", "--format=%s", "runs/demo").splitlines() == commits
    with pytest.raises(BadInput, match=r"evaluate\.n_prompts: the run has begun with another value than 65"):
        train("demo", 3, settings={"evaluate.n_prompts": 65})

    worktree = here.repository.worktree("demo")
    advance(worktree)
    train("demo", 2)  # an iteration that has begun is not run where there are as many as asked for
    assert count_committed(position(worktree)) == 2
    iterate("demo")
    assert here.tags("demo") == ["demo/0000", "demo/0001", "demo/0002"]


def test_a_health_stop_ends_training_until_told_otherwise(here: QuickProject) -> None:
    for _ in range(2):  # the same command again refuses likewise
        with pytest.raises(HealthStop, match=r"ill/0000: .*kl_bounded: KL is 1, above 0\.5\. Be careful\."):
            train("ill", 2, settings={**here.seed("ill"), **STOP})
        assert here.tags("ill") == ["ill/0000"]
    train("ill", 2, settings={**here.seed("ill"), **STOP}, past_health_stop=True)
    assert here.tags("ill") == ["ill/0000", "ill/0001"]


def test_edited_code_is_refused_before_a_stage_runs(here: QuickProject) -> None:
    train("edited", 1, settings=here.seed("edited"))
    code = here.repository.worktree("edited") / "step.py"
    code.write_text(code.read_text(encoding="utf-8") + "\n# edited", encoding="utf-8")
    with pytest.raises(BadInput, match=r"differ from what is committed: step\.py"):
        train("edited", 2)
    here.run("git", "checkout", "--quiet", "step.py", cwd=code.parent)
    advance(code.parent)
    code.write_text(code.read_text(encoding="utf-8") + "\n# edited", encoding="utf-8")
    with pytest.raises(BadInput, match=r"differ from what is committed: step\.py"):
        train("edited", 2)
    train("edited", 2, include_changes=True)
    assert here.git("diff", "--name-only", "edited/0000", "edited/0001", "--", "step.py") == "step.py"


def test_a_second_training_of_a_run_is_refused(here: QuickProject) -> None:
    with trainer_lock(here.repository, "taken"), pytest.raises(BadInput, match="run taken: it is in use by process"):
        train("taken", 1)
    with pytest.raises(BadInput, match=r"run '\.\./x'"):
        train("../x", 1)


def test_health_that_only_warns_stops_nothing(tmp_path: Path) -> None:
    def health(*findings: dict[str, Any]) -> Path:
        file = tmp_path / "health.json"
        file.write_text(json.dumps({"findings": findings}), encoding="utf-8")
        return file

    words = {"rule": "kl_bounded", "message": "KL is 1", "advice": "Lower it"}
    check_health(health({**words, "level": "warn", "action": "warn"}, {**words, "level": "ok", "action": "stop"}), "x")
    with pytest.raises(HealthStop, match="kl_bounded: KL is 1"):
        check_health(health({**words, "level": "warn", "action": "stop"}), "x")


@pytest.mark.parametrize("content", [b"garbage", b"\xff", b"[]", b'{"findings": [{"level": "warn"}]}', None])
def test_health_that_can_t_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "health.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadInput, match=r"health\.json: it is no diagnosis \(.*git checkout HEAD -- health\.json"):
        check_health(file, "x")


# The command ----------------------------------------------------------------------------------------------------------


def command(project: QuickProject, *arguments: str, url: str = "") -> subprocess.Popen[str]:
    environment = {**project.environment, "PREFECT_HOME": str(project.root.with_name("home")), "PREFECT_API_URL": url}
    return subprocess.Popen(
        [sys.executable, "-m", "prefect_flows.train", *arguments],
        cwd=project.root,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_mistake_is_one_line_and_an_exit_code(project: QuickProject) -> None:
    process = command(project, "No Name", "--iterations", "1")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out.startswith("train: error: run 'No Name': ")
    assert out.count("\n") == 1


def test_a_server_that_does_not_answer_is_named(project: QuickProject) -> None:
    process = command(project, "mine", "--iterations", "1", url="http://127.0.0.1:9/api")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 75
    assert out.startswith("train: error: PREFECT_API_URL http://127.0.0.1:9/api: ")
    assert "prefect config unset PREFECT_API_URL" in out
    assert out.count("\n") == 1


def test_the_command_trains_with_a_server_of_its_own_and_ends_it_when_terminated(project: QuickProject) -> None:
    project.clear_trouble()
    project.order_trouble("report", "sleep")
    process = command(project, "mine", "--iterations", "1")
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line.strip())
        if line.startswith("report: asleep"):
            process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 143
    assert [line.partition(" (")[0] for line in lines] == [
        "Prefect starts a server for this training, about 10 s",
        "rollout: iteration 0, n_prompts 128",
        "evaluate: iteration 0, n_prompts 128",
        "report: asleep",
        "report: error: interrupted from the keyboard; run it again to go on",
        "train: terminated; the same command goes on",
    ]
    home = project.root / ".rollbook/prefect/mine"
    assert home.is_dir()
    assert servers_with(home) == []


def test_a_training_keeps_its_run_from_before_its_server_starts_and_ends_with_it(project: QuickProject) -> None:
    project.clear_trouble()
    project.order_trouble("rollout", "sleep")
    home = project.root / ".rollbook/prefect/lost"
    home.mkdir(parents=True)
    (home / "prefect.db").write_bytes(b"garbage" * 1000)
    process = command(project, "lost", "--iterations", "1", "--set", "seed=77")
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    second = command(project, "lost", "--iterations", "1")  # while the server of the first starts
    out, _ = second.communicate(timeout=60)
    assert second.returncode == 1
    assert out.startswith(f"train: error: run lost: it is in use by process {process.pid} ")
    while not lines[-1].startswith("rollout: asleep"):
        lines.append(process.stdout.readline())
        assert lines[-1], lines
    (server,) = servers_with(home)
    killed_at = time.monotonic()
    psutil.Process(server).kill()
    lines += process.stdout.readlines()
    assert process.wait(timeout=30) == 75
    assert time.monotonic() - killed_at < 15
    assert [line.strip().partition(" (")[0] for line in lines] == [
        "Prefect starts a server for this training, about 10 s",
        f"Prefect's database is damaged, and set aside as {home}/prefect.db.damaged; training needs none of it",
        "rollout: asleep",
        f"train: error: Prefect's server, process {server}, has died; the same command goes on",
        "rollout: error: interrupted from the keyboard; run it again to go on",
    ]


def servers_with(home: Path) -> list[int]:
    time.sleep(0.5)
    return [
        process.pid
        for process in psutil.process_iter()
        if process.is_running() and str(home) in _environment(process).get("PREFECT_HOME", "")
    ]


def _environment(process: Any) -> dict[str, str]:
    try:
        found: dict[str, str] = process.environ()
    except psutil.Error:
        return {}
    return found
