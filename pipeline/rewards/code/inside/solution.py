"""Runs a solution in its sandbox: as a program, anew for each case, or as a module whose functions are called.

Nothing that is said here is believed: a solution whose functions are called shares this process and can take its place.
All it can say is what its answers are, and whether they are right is decided elsewhere.
"""

from __future__ import annotations

import builtins
import os
import sys
import types

from .channel import Channel
from .objects import Objects

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SIGKILL = 9  # the module signal is slow to import


def main(results: int) -> None:
    """Serve the scorer's requests until it goes."""
    channel = Channel(results)
    if channel.task["kind"] == "program":
        _serve_runs(channel)
    else:
        _serve_calls(channel)


def _serve_runs(channel: Channel) -> None:
    while True:
        channel.send(_run_program(channel, channel.receive()["stdin"]))


def _run_program(channel: Channel, text: str) -> dict[str, Any]:
    """What the solution wrote as a program with `text` on its standard input, and the status that it ended with."""
    task = channel.task
    stdin, stdout = _unnamed_file(text.encode()), _unnamed_file(b"")
    child = os.fork()
    if child == 0:
        channel.close()
        for file, standard in ((stdin, 0), (stdout, 1)):
            os.dup2(file, standard)
            os.close(file)
        channel.confine()
        _execute(task["code"], "__main__")
        sys.exit()  # up through main(), so that the interpreter ends as after any program
    _, status = os.waitpid(child, 0)
    if task["is_isolated"]:
        _end_all_others()
    limit = task["max_output_bytes"]
    size = os.fstat(stdout).st_size
    written = os.pread(stdout, limit, 0)
    os.close(stdin)
    os.close(stdout)
    return {"stdout": written.decode("utf-8", "surrogateescape"), "is_cut": size >= limit, "status": status}


def _unnamed_file(content: bytes) -> int:
    """A descriptor of a file without a name that holds `content`, at its start."""
    descriptor = os.open("/tmp", os.O_TMPFILE | os.O_RDWR)
    written = 0
    while written < len(content):
        written += os.pwrite(descriptor, content[written:], written)
    return descriptor


def _end_all_others() -> None:
    """End every process of the sandbox but this one, which alone may outlive a case."""
    try:
        os.kill(-1, _SIGKILL)
    except ProcessLookupError:
        return


def _serve_calls(channel: Channel) -> None:
    channel.confine()
    task = channel.task
    objects = Objects(lambda: _execute(task["code"], "solution"), keeps_own_classes=task["has_classes"])
    channel.send(objects.load())
    while True:
        channel.send(objects.answer(channel.receive()))


def _execute(code: str, name: str) -> types.ModuleType:
    """Run `code` as the module `name`."""
    os.environ.clear()
    module = types.ModuleType(name)
    module.__file__ = "solution.py"
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # as of the module site, which is slow to import
    sys.modules[name] = module
    sys.argv = ["solution.py"]
    exec(compile(code, "solution.py", "exec", dont_inherit=True), module.__dict__)
    return module
