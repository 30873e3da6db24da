"""Rows out of a file of the user's own: JSON lines, CSV or Parquet."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import polars as pl

from pipeline.errors import BadInput, first_line
from pipeline.params import PromptSource
from pipeline.prompt_sources.columns import check_columns, columns_of
from pipeline.prompt_sources.raw import SOURCE_KEY, Rows, nearest, path_in_sources


def file_rows(source: PromptSource) -> tuple[Rows, str]:
    """The rows of `source.file`, and the path that stands for it in the table; a `BadInput` where it can't be read."""
    assert source.file is not None
    path = path_in_sources(source.file, "file")
    if path.suffix not in READERS:
        problem = f"{source.file!r} ends in {path.suffix!r}, which is none of {', '.join(READERS)}"
        raise BadInput(f"{SOURCE_KEY}.file", problem, "Convert it to one of these")
    if not path.is_file():
        there = sorted(file.name for file in path.parent.glob("*") if file.suffix in READERS)
        remedy = nearest(path.name, there, f"{path.parent} holds {there}")
        raise BadInput(f"{SOURCE_KEY}.file", f"there is no file {source.file!r}", remedy)
    return READERS[path.suffix](path, source), path.as_posix()


def frame_rows(frame: pl.DataFrame, source: PromptSource, where: str) -> Rows:
    """The rows of `frame`, of the columns that `source` names alone."""
    check_columns(frame.columns, source, where)
    columns = dict.fromkeys(columns_of(source).values())
    for number, row in enumerate(frame.select(*columns).iter_rows(named=True), start=1):
        yield f"{where}: row {number}", row


def _jsonl_rows(path: Path, source: PromptSource) -> Rows:
    # Not splitlines(): it splits at characters that may stand inside a JSON string, such as U+2028, too.
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        try:
            row = json.loads(line, parse_float=Decimal)
        except (ValueError, RecursionError) as error:
            problem = f"it is not valid JSON ({first_line(error)}): {line[:80]!r}"
            raise BadInput(where, problem, "Write one JSON object in each line") from error
        if not isinstance(row, dict):
            raise BadInput(where, f"{line[:80]!r} is not a JSON object", "Write one JSON object in each line")
        check_columns(row, source, where)
        yield where, row


def _csv_rows(path: Path, source: PromptSource) -> Rows:
    try:
        # Without inference every field stays the text that it is: 007 and 5.10 keep their zeros.
        frame = pl.read_csv(_read_text(path).encode(), infer_schema=False)
    except pl.exceptions.PolarsError as error:
        raise BadInput(str(path), f"it can't be read as CSV ({first_line(error)})", "Mend the file") from error
    return frame_rows(frame, source, str(path))


def _parquet_rows(path: Path, source: PromptSource) -> Rows:
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BadInput(str(path), f"it can't be read as Parquet ({first_line(error)})", "Write it anew") from error
    return frame_rows(frame, source, str(path))


def _read_text(path: Path) -> str:
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = f"byte {content[error.start]:#04x} is not UTF-8 text"
        raise BadInput(f"{path}: line {line}", problem, "Save the file as UTF-8") from error


READERS: dict[str, Callable[[Path, PromptSource], Rows]] = {
    ".jsonl": _jsonl_rows,
    ".csv": _csv_rows,
    ".parquet": _parquet_rows,
}
