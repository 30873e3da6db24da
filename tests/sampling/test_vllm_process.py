"""Engine processes, with a fake engine in them: what is said, how they die, and that none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from pipeline.errors import BadInput
from pipeline.sampling import FinishReason, SampleRequest, vllm_process
from pipeline.sampling.vllm_process import EngineProcess, EngineSettings
from tests.stage_runs import ROOT

FAKE = "tests.sampling.fake_vllm_engine"
REQUESTS = [SampleRequest([1], [7, 8]), SampleRequest([2], [9])]


def settings(manner: str) -> EngineSettings:
    return EngineSettings({}, None, 1.0, 4, 0, [], [manner])


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_process, "ENGINE", FAKE)
    monkeypatch.chdir(ROOT)


def start(manner: str) -> EngineProcess:
    return EngineProcess(settings(manner), {}, [min(os.sched_getaffinity(0))])


def is_gone(pid: int) -> bool:
    """Whether the process has ended within some seconds."""
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.1)
    return False


def test_completions_and_progress_come_through_and_closing_ends_the_process() -> None:
    reported: list[tuple[list[FinishReason], int]] = []
    with closing(start("works")) as engine:
        engine.wait()
        assert len(psutil.Process(engine.process.pid).cpu_affinity()) == 1
        groups = engine.sample(REQUESTS, None, lambda reasons, n: reported.append((list(reasons), n)))
        assert [[each.seed for each in group] for group in groups] == [[7, 8], [9]]
        groups = engine.sample(REQUESTS, 5, lambda *_: None)
        assert [[each.seed for each in group] for group in groups] == [[5, 5], [5]]
    assert reported == [(["stop"], 3)]
    assert engine.process.returncode == 0


FAILURES = [
    ("raises Free memory on device cuda:0 (1/80 GiB) is less than desired", "gpu_memory_utilization", "Free memory"),
    (
        "raises Model architectures ['Odd'] are not supported for now.",
        "engine to transformers",
        "ValueError: Model arch",
    ),
    ("raises LoRA rank 7 is greater than max", r"training\.lora\.target_modules", "LoRA rank 7"),
    # What vLLM says of a worker names no cause: its log does.
    (
        "logs WorkerProc initialization failed due to an exception",
        "gpu_memory_utilization",
        "OutOfMemoryError: CUDA out",
    ),
]


@pytest.mark.parametrize(("manner", "remedy", "cause"), FAILURES)
def test_what_vllm_refuses_is_said_with_a_remedy(manner: str, remedy: str, cause: str) -> None:
    with closing(start(manner)) as engine, pytest.raises(BadInput, match=remedy) as raised:
        engine.wait()
    assert cause in str(raised.value)


def test_an_error_of_no_known_kind_is_a_bug_with_the_traceback_of_the_engine() -> None:
    with closing(start("raises something odd")) as engine, pytest.raises(RuntimeError, match=r"fake_vllm_engine\.py"):
        engine.wait()


def test_an_engine_that_dies_is_said_with_its_signal() -> None:
    with closing(start("dies")) as engine:
        engine.wait()
        with pytest.raises(BadInput, match=r"engine died \(signal 9\)"):
            engine.sample(REQUESTS, None, lambda *_: None)


def test_an_engine_that_can_not_be_imported_is_said_with_the_end_of_its_log() -> None:
    with closing(start("breaks")) as engine:
        with pytest.raises(BadInput, match=r"exit code 1\); .* operator torchvision::nms .*\. Uninstall torchvision"):
            engine.wait()
        with pytest.raises(BadInput, match=r"engine died \(exit code 1\)"):
            engine.sample(REQUESTS, None, lambda *_: None)


STAGE = f"""
import sys
from pipeline.sampling import SampleRequest, vllm_process
from pipeline.sampling.vllm_process import EngineProcess, EngineSettings
vllm_process.ENGINE = {FAKE!r}
engine = EngineProcess(EngineSettings({{}}, None, 1.0, 4, 0, [], ["hangs " + sys.argv[1]]), {{}}, None)
engine.wait()
try:
    engine.sample([SampleRequest([1], [2])], None, print)
finally:
    engine.close()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_stage_that_is_killed_leaves_no_process_behind(how: signal.Signals, tmp_path: Path) -> None:
    said = tmp_path / "pids"
    stage = subprocess.Popen([sys.executable, "-c", STAGE, str(said)], cwd=ROOT, stderr=subprocess.DEVNULL)
    while not said.exists() or not said.read_text():
        assert stage.poll() is None
        time.sleep(0.05)
    stage.send_signal(how)
    assert stage.wait(30) != 0
    assert all(is_gone(int(pid)) for pid in said.read_text().split())
