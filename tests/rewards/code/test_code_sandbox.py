"""The sandbox itself: its command line, its system calls, what becomes of it, and the canary."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import BadInput
from pipeline.params import CodeParams
from pipeline.rewards.code.canary import check_sandbox
from pipeline.rewards.code.grading import Grade, Status, grade
from pipeline.rewards.code.launch import make_launch
from pipeline.rewards.code.sandbox import Launch
from tests.rewards.code.trials import PARAMS, marked_launch, needs_sandbox, squares, survivors, tried

pytestmark = needs_sandbox

FORBIDDEN = """
fork vfork execve execveat clone3 unshare setns mount umount2 pivot_root chroot ptrace process_vm_readv
process_vm_writev kcmp pidfd_open pidfd_getfd memfd_create shmget shmat semget msgget mq_open io_uring_setup
io_uring_enter userfaultfd bpf perf_event_open keyctl add_key request_key seccomp prctl setuid setresuid setgroups
socket connect bind listen sendmsg recvmsg open_by_handle_at name_to_handle_at mknod mknodat chown fchownat setxattr
personality acct swapon reboot init_module finit_module kexec_load iopl ioperm sethostname settimeofday inotify_init1
fanotify_init signalfd4 timerfd_create splice vmsplice tee syslog quotactl lookup_dcookie move_pages mbind
set_mempolicy open_tree move_mount fsopen fsmount mlock mlockall sched_setaffinity setpriority
"""


def number_of(name: str) -> int:
    """The number of a system call; negative where this architecture has none of that name."""
    import pyseccomp

    return int(pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name))


def test_each_forbidden_system_call_is_refused() -> None:
    known = {name: number_of(name) for name in FORBIDDEN.split() if number_of(name) >= 0}
    assert len(known) > 60
    code = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def f(numbers):
    # With all arguments -1 a call that got through would fail too, but for another reason.
    allowed = []
    for name, number in numbers.items():
        got = libc.syscall(number, *[ctypes.c_long(-1)] * 6)
        if got != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
            allowed.append((name, got, errno.errorcode.get(ctypes.get_errno())))
    return allowed
"""
    graded = tried(code, {"kind": "calls", "function": "f", "cases": [{"args": [known], "expected": []}]})
    assert graded.status is Status.PASS, graded


def test_threads_may_be_made_but_no_processes() -> None:
    code = f"""
import ctypes, threading
def f(flags):
    libc = ctypes.CDLL(None, use_errno=True)
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    return libc.syscall({number_of("clone")}, ctypes.c_long(flags), 0, 0, 0, 0), ctypes.get_errno()
"""
    # SIGCHLD as fork has it; the same with a new user namespace; and with memory shared, as vfork does.
    cases = [{"args": [flags], "expected": {"python": "(-1, 1)"}} for flags in (17, 17 | 0x10000000, 17 | 0x4100)]
    graded = tried(code, {"kind": "calls", "function": "f", "cases": cases})
    assert graded.status is Status.PASS, graded


def test_the_command_line_has_what_keeps_a_solution_in() -> None:
    command = make_launch(CodeParams()).command
    assert {"--unshare-all", "--die-with-parent", "--new-session", "--clearenv"} <= set(command)
    assert command[command.index("--cap-drop") + 1] == "ALL"
    assert "--proc" not in command
    writable = [option for option in command if option in ("--bind", "--dev-bind", "--bind-try", "--tmpfs")]
    assert writable == ["--dev-bind"] * 4 + ["--tmpfs"]  # null, zero, random, urandom; and /tmp
    bound = [command[i + 1] for i, option in enumerate(command) if option.startswith("--ro-bind")]
    assert [path for path in bound if Path.cwd().is_relative_to(path) or path in ("/usr", "/home", "/etc")] == []


def test_a_solution_sees_no_environment_and_is_nobody() -> None:
    code = "import os\ndef f():\n    return dict(os.environ), os.listdir('/tmp'), os.getuid() == 0, os.getgroups()"
    expected = {"python": f"({{}}, [], False, {[] if os.getuid() == 0 else os.getgroups()})"}
    graded = tried(code, {"kind": "calls", "function": "f", "cases": [{"expected": expected}]})
    assert graded.status is Status.PASS, graded


def test_a_sandbox_does_not_outlive_a_scorer_that_is_killed() -> None:
    script = f"""
from dataclasses import replace
from tests.rewards.code import trials
launch = replace(trials.make_launch(trials.PARAMS), python={marked_launch().python!r})
trials.marked_launch = lambda: launch
trials.tried("import time\\ntime.sleep(1000)")
"""
    with subprocess.Popen([sys.executable, "-c", script]) as scorer:
        while not survivors(0):
            assert scorer.poll() is None
        os.kill(scorer.pid, signal.SIGKILL)
    assert survivors() == []


# When it does not come up ---------------------------------------------------------------------------------------------


def grade_of(launch: Launch) -> Grade:
    return grade("def f(x):\n    return x * x", squares(), PARAMS, launch)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("false",), "ended with exit code 1"),
        (("echo",), "ended with exit code 0"),
        (("no-such-bwrap",), "No such file"),
        (("bwrap", "--no-such-option"), "Unknown option --no-such-option"),
    ],
)
def test_a_missing_hello_is_no_fault_of_the_solution(command: tuple[str, ...], reason: str) -> None:
    graded = grade_of(replace(marked_launch(), command=command, is_root=False))
    assert graded.status is Status.INFRA_ERROR
    assert reason in graded.reason


def test_a_sandbox_that_does_not_start_is_tried_again(tmp_path: Path) -> None:
    launch = marked_launch()
    flag, script = tmp_path / "failed_once", tmp_path / "bwrap"
    script.write_text(f'#!/bin/sh\ntest -e {flag} || {{ : > {flag}; exit 1; }}\nexec {launch.command[0]} "$@"\n')
    script.chmod(0o755)
    assert grade_of(replace(launch, command=(str(script), *launch.command[1:]))).status is Status.PASS
    assert flag.exists()


def test_the_canary_refuses_a_sandbox_that_does_not_start() -> None:
    with pytest.raises(BadInput, match=r"score.code.isolation: a right solution comes out as infra_error.*apt-get"):
        check_sandbox(PARAMS, replace(marked_launch(), command=("false",), is_root=False))


def test_the_canary_says_where_limits_are_too_tight() -> None:
    with pytest.raises(BadInput, match=r"a right solution comes out as limit: .*Raise the limits of score\.code"):
        check_sandbox(PARAMS.model_copy(update={"max_output_bytes": 1}), marked_launch())


@pytest.mark.parametrize("hole", ["files", "no_filter", "no_inner_filter", "memory"])
def test_the_canary_refuses_a_sandbox_with_a_hole(hole: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = marked_launch()
    if hole == "files":
        end = launch.command.index("--remount-ro")
        here = [str(folder) for folder in (*reversed(Path.cwd().parents), Path.cwd())][1:]
        opened = [option for folder in here for option in ("--perms", "0755", "--dir", folder)]
        bind = (*opened, "--ro-bind", here[-1], here[-1])
        launch = replace(launch, command=(*launch.command[:end], *bind, *launch.command[end:]))
    elif hole == "no_filter":
        launch = replace(launch, inner_filter=b"")
    elif hole == "no_inner_filter":
        launch = replace(launch, inner_filter=launch.outer_filter)
    else:
        monkeypatch.setattr("pipeline.rewards.code.trial._limits", lambda _params: {})
    with pytest.raises(BadInput, match=r"score.code.isolation: the sandbox does not hold"):
        check_sandbox(PARAMS, launch)


def test_without_bubblewrap_the_stage_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BadInput, match=r"there is no `bwrap` on this machine.*outer_container_is_the_sandbox"):
        make_launch(CodeParams())


def test_another_container_may_do_the_job_where_params_say_so() -> None:
    params = CodeParams(isolation="outer_container_is_the_sandbox", time_limit_seconds=1.0)
    launch = make_launch(params)
    check_sandbox(params, launch)
    assert grade("def f(x):\n    return x * x", squares(), params, launch).status is Status.PASS
    assert grade("def f(x):\n    while True: pass", squares(), params, launch).status is Status.TIMEOUT
