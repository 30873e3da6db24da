"""Tables on disk: checked reads, and writes that appear whole or not at all.

A write goes to a temporary file beside the target, is flushed to the disk, and is renamed over the target; the
folder is flushed too, so that a power cut leaves the old file or the new one. Parquet pages carry checksums.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import BadInput
from pipeline.table_checks import check_order, check_schema, check_table
from pipeline.tables import SCHEMA_VERSION, Table

ROWS_PER_ROW_GROUP = 50_000
"""Fixed, so that the bytes of a file don't depend on how a lazy query happened to be cut."""
ROWS_PER_BATCH = 4_096
"""Read at a time: completions of some thousand tokens make a few hundred megabytes of a row group."""


def read_table(path: Path, table: Table) -> pl.DataFrame:
    """The whole table at `path`, its page checksums and every rule of `table` checked.

    Raises:
        BadInput: the file is missing, damaged, or breaks a rule of `table`.
    """
    _open_table(path, table)
    # Not pq.read_table, which imports pyarrow.dataset, and that pandas where it is installed.
    with _damage_named(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        frame = pl.from_arrow(file.read())
    assert isinstance(frame, pl.DataFrame)
    check_table(frame, table, str(path))
    check_order(frame.select(table.key), table, str(path))
    return frame


def scan_table(path: Path, table: Table, columns: list[str] | None = None) -> pl.LazyFrame:
    """A lazy read of `columns` of the table at `path`, after one checking pass over just these and the key.

    Raises:
        BadInput: the file is missing or damaged, or what was asked of it breaks a rule of `table`.
    """
    for _ in read_batches(path, table, columns):
        pass
    # Statistics have no checksum, and a damaged one would make a filter skip rows.
    lazy = pl.scan_parquet(path, use_statistics=False, glob=False)
    return lazy if columns is None else lazy.select(columns)


def read_batches(path: Path, table: Table, columns: list[str] | None = None) -> Iterator[pl.DataFrame]:
    """The rows of `columns`, and the key, of the table at `path`, checked, `ROWS_PER_BATCH` at a time.

    Memory holds a batch, where a lazy read of Polars holds whole row groups.

    Raises:
        BadInput: as `scan_table`, when the iteration comes to it.
    """
    _open_table(path, table)
    n_rows = 0
    last = table.empty().select(table.key)
    for batch in _verified_batches(path, None if columns is None else [*dict.fromkeys([*columns, *table.key])]):
        check_table(batch, table, str(path), first_row=n_rows)
        keys = pl.concat([last, batch.select(table.key)])
        check_order(keys, table, str(path), first_row=n_rows - last.height)
        n_rows += batch.height
        last = keys.tail(1)
        yield batch
    if n_rows == 0:
        check_table(table.empty(), table, str(path))


def open_table(path: Path, table: Table) -> pl.LazyFrame:
    """A lazy read of the table at `path` whose columns alone were checked, for questions that want a few of them.

    Raises:
        BadInput: the file is missing, can't be read, or has other columns than `table`.
    """
    _open_table(path, table)
    return pl.scan_parquet(path, use_statistics=False, glob=False)


def table_metadata(path: Path) -> dict[str, str]:
    """The key-value metadata that `write_table` put into the file at `path`."""
    with _damage_named(path):
        return {k: v for k, v in pl.read_parquet_metadata(path).items() if k != "ARROW:schema"}


def write_table(
    rows: pl.DataFrame | pl.LazyFrame, path: Path, table: Table, metadata: Mapping[str, str] | None = None
) -> int:
    """Check `rows` and write them to `path`, sorted by key; return how many there are.

    A lazy frame is streamed, never held whole, and so must come sorted by key; a ValueError says where it isn't.
    """
    if isinstance(rows, pl.DataFrame):
        check_schema(rows.schema, table, str(path))
        check_table(rows, table, str(path))
        batches: Iterator[pl.DataFrame] = iter([rows.select(_column_order(rows.schema, table)).sort(table.key)])
        schema = rows.schema
    else:
        schema = rows.collect_schema()
        check_schema(schema, table, str(path))
        batches = iter(rows.collect_batches(chunk_size=ROWS_PER_ROW_GROUP, maintain_order=True))
        batches = _checked_order(batches, path, table)
    columns = _column_order(schema, table)
    empty = pl.DataFrame(schema={name: schema[name] for name in columns}).to_arrow()
    own = {"schema_version": SCHEMA_VERSION, **(metadata or {})}
    arrow_schema = empty.schema.with_metadata({key.encode(): value.encode() for key, value in own.items()})
    n_rows = 0
    with (
        atomic_path(path) as temporary,
        pq.ParquetWriter(temporary, arrow_schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for chunk in _fixed_chunks(batches):
            n_rows += chunk.height
            writer.write_table(chunk.select(columns).to_arrow().cast(arrow_schema))
        if n_rows == 0:
            check_table(table.empty(), table, str(path))
    return n_rows


def write_json(value: Any, path: Path) -> None:
    """Write `value` to `path` as JSON with sorted keys; NaN and infinity are refused with a ValueError."""
    text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)
    write_text(text + "\n", path)


def write_text(text: str, path: Path) -> None:
    """Write `text` to `path`, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary sibling of `path`, a file or a folder, renamed over it when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    temporary = path.with_name(f".tmp-{path.name}.{os.getpid()}")
    try:
        yield temporary
        _flush(temporary)
        if temporary.is_dir() and path.exists():
            # A full folder can't be renamed over: the old one steps aside first.
            aside = path.with_name(f".tmp-{path.name}.{os.getpid()}.old")
            path.rename(aside)
            temporary.rename(path)
            _remove(aside)
        else:
            temporary.replace(path)
        flush_entry(path.parent)
    finally:
        _remove(temporary)


def _open_table(path: Path, table: Table) -> None:
    if not path.is_file():
        raise BadInput(
            str(path), f"there is no such file, and it holds the table {table.name}", "Run `dvc repro` to make it"
        )
    with _damage_named(path):
        schema = pl.scan_parquet(path, glob=False).collect_schema()
    version = table_metadata(path).get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        remedy = "Run the stage that makes it again, or use the release that wrote it"
        raise BadInput(str(path), f"its schema_version is {version!r}, and this release reads {SCHEMA_VERSION}", remedy)
    check_schema(schema, table, str(path))


def _verified_batches(path: Path, columns: list[str] | None) -> Iterator[pl.DataFrame]:
    """The rows at `path` in batches, page checksums verified, which a lazy read of Polars doesn't do."""
    with _damage_named(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        for batch in file.iter_batches(ROWS_PER_BATCH, columns=columns):
            yield pl.DataFrame(batch)


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Make whatever reading a damaged file raises a `BadInput`; Polars panics on some damaged schemas."""
    try:
        yield
    except (pa.ArrowException, pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        remedy = "Restore it with `dvc checkout`, or run the stage that makes it again"
        raise BadInput(str(path), f"it can't be read as Parquet ({reason})", remedy) from error


def _column_order(schema: pl.Schema, table: Table) -> list[str]:
    *first, last = table.schema
    return [*first, *sorted(name for name in schema if name not in table.schema), last]


def _checked_order(batches: Iterator[pl.DataFrame], path: Path, table: Table) -> Iterator[pl.DataFrame]:
    last = table.empty().select(table.key)
    for batch in batches:
        if batch.height == 0:
            continue
        check_table(batch, table, str(path))
        keys = pl.concat([last, batch.select(table.key)])
        if not keys.equals(keys.sort(table.key)) or keys.is_duplicated().any():
            raise ValueError(f"{path}: rows of {table.name} do not come in the order of {table.key}")
        last = keys.tail(1)
        yield batch


def _fixed_chunks(batches: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    held: list[pl.DataFrame] = []
    n_held = 0
    for batch in batches:
        held.append(batch)
        n_held += batch.height
        while n_held >= ROWS_PER_ROW_GROUP:
            whole = pl.concat(held)
            yield whole.head(ROWS_PER_ROW_GROUP).rechunk()
            held = [whole.slice(ROWS_PER_ROW_GROUP)]
            n_held = held[0].height
    if n_held:
        yield pl.concat(held).rechunk()


def _flush(path: Path) -> None:
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        flush_entry(file)
    if path.is_dir():
        flush_entry(path)


def flush_entry(path: Path) -> None:
    """Have the file or folder `path` on the disk; of a folder, only which names it has."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary siblings of `path` that dead processes left."""
    for leftover in path.parent.glob(f".tmp-{path.name}.*"):
        owner = leftover.name.removeprefix(f".tmp-{path.name}.").split(".")[0]
        if owner.isdigit() and not _is_another_alive(int(owner)):
            _remove(leftover)


def _is_another_alive(process_id: int) -> bool:
    if process_id == os.getpid():  # in a container the next process gets the number of the one that died
        return False
    import psutil  # here, since few writes meet a leftover

    try:
        # A killed process keeps its number as a zombie until somebody waits for it, which not every init does at once.
        return psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
