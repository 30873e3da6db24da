"""How a sandbox fails to do what it was asked."""

from __future__ import annotations

import signal


class SandboxError(Exception):
    """A sandbox did not do what was asked of it, for a reason that is its message."""


class InfraError(SandboxError):
    """The sandbox did not come up: that says nothing of the solution."""


class DeadlineError(SandboxError):
    """No answer came in time."""


class ProtocolError(SandboxError):
    """What came is no answer."""


class EndedError(SandboxError):
    """The process ended before it answered; a negative `exit_code` is a signal, and None means that it lives on."""

    def __init__(self, exit_code: int | None) -> None:
        super().__init__(f"it {describe_end(exit_code)} before it answered")
        self.is_limit = is_limit(exit_code)


def describe_end(exit_code: int | None) -> str:
    """How a process ended, from the exit code that subprocess gives.

    >>> describe_end(3), describe_end(-11), describe_end(-40)
    ('ended with exit code 3', 'was ended by SIGSEGV', 'was ended by signal 40')
    """
    if exit_code is None:
        return "closed its descriptors"
    if exit_code < 0:
        names = {each.value: each.name for each in signal.Signals}
        return f"was ended by {names.get(-exit_code, f'signal {-exit_code}')}"
    return f"ended with exit code {exit_code}"


def is_limit(exit_code: int | None) -> bool:
    """Whether that is how the kernel ends a process that used too much processor time or memory."""
    return exit_code is not None and -exit_code in (signal.SIGXCPU, signal.SIGKILL)
