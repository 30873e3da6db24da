"""Attacks on the sandbox and the grader: each has the right status, leaves no process and changes nothing outside."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.rewards.code import inside
from tests.rewards.code.attacks import ATTACKS, Attack
from tests.rewards.code.trials import needs_sandbox, survivors, tried

pytestmark = needs_sandbox


def what_is_outside() -> dict[str, object]:
    """What an attack that got out might have changed."""
    code = {path.name: path.read_bytes() for path in Path(inside.__file__).parent.glob("*.py")}
    segments = Path("/proc/sysvipc/shm").read_text().count("\n")
    return {
        "code": code,
        "segments": segments,
        "shared": (Path("/dev/shm") / "bomb").exists(),
        "home": (Path.home() / "attack").exists(),
    }


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_gains_and_harms_nothing(attack: Attack) -> None:
    before = what_is_outside()
    seconds = 0.5 if "timeout" in attack.statuses else 10.0
    started = time.monotonic()
    graded = tried(attack.code, attack.tests, time_limit_seconds=seconds)
    assert graded.status in attack.statuses.split(), graded
    assert graded.n_passed < graded.n_tests
    assert time.monotonic() - started < 10
    assert survivors() == []
    assert what_is_outside() == before


@pytest.mark.parametrize(
    "attack", [each for each in ATTACKS if each.fools_an_exit_code], ids=lambda attack: attack.name
)
def test_a_harness_that_trusts_the_exit_code_is_fooled(attack: Attack, tmp_path: Path) -> None:
    """The control: these attacks do work where asserts are appended to the solution."""
    file = tmp_path / "solution_with_tests.py"
    file.write_text(f"{attack.code}\nassert f(3) == 9\nassert f(5) == 25\n")
    assert (
        subprocess.run([sys.executable, "-I", str(file)], capture_output=True, check=False, timeout=30).returncode == 0
    )


def test_enough_attacks_fool_such_a_harness() -> None:
    assert sum(attack.fools_an_exit_code for attack in ATTACKS) >= 8
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 31
