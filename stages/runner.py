"""What every stage has in common: params in, metrics and one line of result out, and a record of how it ended.

DVC answers 255 whatever a stage's exit code was, so a stage leaves `.rollbook/exit/<stage>.json` with its code,
its kind (`ok`, `bad_input`, `usage`, `bug`, `transient`, `interrupted`) and its message.

Of the processes of a stage that torchrun started, the first one speaks and writes, or the first that fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from pipeline.errors import DISK_ERRORS, BadInput, RollbookError
from pipeline.params import PARAMS_FILE, Params, load_params
from pipeline.table_io import write_json
from stages import STARTED, paths

BUG_EXIT_CODE = 70
INTERRUPTED_EXIT_CODE = 130
USAGE_EXIT_CODE = 2


@dataclass(frozen=True)
class Result:
    """What a stage has to say: one line for the terminal, and numbers for `data/metrics/<stage>.json`."""

    line: str
    metrics: dict[str, Any] = field(default_factory=dict)


def run_stage(name: str, work: Callable[[Params], Result]) -> None:
    """Run `work`, print its line, write its metrics and its exit record, and leave the process.

    A `RollbookError` becomes its message on stderr and its exit code; anything else is a bug, shown with its
    traceback. An edit of the stage's code or params while it ran is an error: DVC hashes dependencies after the
    command, and would record the new code for what the old code made.
    """
    try:
        _remove_last_record(name)
        if len(sys.argv) > 1:
            _leave(name, USAGE_EXIT_CODE, "usage", f"stages.{name} takes no arguments, but got {sys.argv[1:]}")
        params = load_params()
        code_at_start = _code_hashes(name)
        if not is_first_rank():
            with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
                work(params)
            return
        result = work(params)
        _check_unedited(name, code_at_start, params)
        seconds = time.monotonic() - STARTED
        usage = {"seconds": round(seconds, 2), "peak_memory_mb": _peak_memory_mb()}
        write_json({**result.metrics, **usage}, paths.METRICS / f"{name}.json")
    except RollbookError as error:
        _leave(name, error.exit_code, error.kind, str(error))
    except KeyboardInterrupt:
        if rank() is not None:  # the process that started the ranks says it once
            sys.exit(INTERRUPTED_EXIT_CODE)
        _leave(name, INTERRUPTED_EXIT_CODE, "interrupted", "interrupted from the keyboard; run it again to go on")
    except Exception as error:  # the last word on any bug: say so, with the traceback, and a code of its own
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            _leave(name, 1, "bad_input", f"{error}. Free some space, or make the folder writable")
        _leave(name, BUG_EXIT_CODE, "bug", f"{type(error).__name__}: {error}", traceback.format_exc())
    print(f"{name}: {result.line} ({seconds:.1f} s)", flush=True)
    _record(name, 0, "ok", result.line)


def rank() -> int | None:
    """The number of this process among those that torchrun started, from 0; None where it did not start this one."""
    return int(os.environ["RANK"]) if "TORCHELASTIC_RUN_ID" in os.environ else None


def is_first_rank() -> bool:
    """Whether this process is the only one, or the first."""
    return not rank()


def _leave(name: str, code: int, kind: str, message: str, trace: str = "") -> None:
    if rank() is None:
        print(f"{trace}{name}: error: {message}", file=sys.stderr, flush=True)
        _record(name, code, kind, message)
    elif _is_first_to_fail(name, code, kind, message):
        print(f"{trace}{name}: error: {message}", file=sys.stderr, flush=True)
    else:
        code = json.loads(_record_file(name).read_text(encoding="utf-8"))["code"]
    sys.exit(code)


def _record(name: str, code: int, kind: str, message: str) -> None:
    try:
        write_json({"code": code, "kind": kind, "message": message}, _record_file(name))
    except OSError as error:  # a full disk must not take the exit code along
        print(f"{name}: no exit record: {error}", file=sys.stderr, flush=True)


def _is_first_to_fail(name: str, code: int, kind: str, message: str) -> bool:
    """Write the exit record of a rank, unless another one has: then it failed first, and this one along with it."""
    own = _record_file(f"{name}.rank{rank()}")
    try:
        write_json({"code": code, "kind": kind, "message": message}, own)
        os.link(own, _record_file(name))
    except FileExistsError:
        return False
    except OSError as error:
        print(f"{name}: no exit record: {error}", file=sys.stderr, flush=True)
    finally:
        own.unlink(missing_ok=True)
    return True


def _remove_last_record(name: str) -> None:
    """A stage that is killed leaves none, and not that of the time before; one of another rank is younger than this."""
    started_at = time.time() - (time.monotonic() - STARTED)
    with suppress(FileNotFoundError):
        if rank() is None or _record_file(name).stat().st_mtime < started_at:
            _record_file(name).unlink()


def _record_file(name: str) -> Path:
    return paths.EXIT_RECORDS / f"{name}.json"


def _code_hashes(name: str) -> dict[str, str]:
    """SHA-256 of each code file that dvc.yaml names as a dependency of the stage."""
    hashes: dict[str, str] = {}
    for dependency in _stage_entry(name).get("deps", []):
        path = Path(dependency)
        if path.is_relative_to(paths.DATA):
            continue
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in (file for file in files if file.is_file() and file.suffix != ".pyc"):
            hashes[str(file)] = hashlib.sha256(file.read_bytes()).hexdigest()
    return hashes


@cache
def _stage_entry(name: str) -> dict[str, Any]:
    file = Path("dvc.yaml")
    if not file.is_file():
        return {}
    entry: dict[str, Any] = YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8"))["stages"].get(name, {})
    return entry


def _check_unedited(name: str, code_at_start: dict[str, str], params: Params) -> None:
    code_now = _code_hashes(name)
    for file in sorted(code_at_start.keys() | code_now.keys()):
        if code_at_start.get(file) != code_now.get(file):
            raise BadInput(file, "it was edited while the stage ran", "Run `dvc repro` again to use the edited code")
    sections = {str(key).split(".")[0] for key in _stage_entry(name).get("params", [])}
    now = load_params()
    for section in sorted(sections):
        if getattr(now, section) != getattr(params, section):
            remedy = "Run `dvc repro` again to use the new values"
            raise BadInput(f"{PARAMS_FILE}: {section}", "it was edited while the stage ran", remedy)


def _peak_memory_mb() -> int:
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10))
