"""Tables on disk: what is written is what is read, the same rows are the same bytes, and damage is never silent."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from pipeline import table_io
from pipeline.errors import BadInput
from pipeline.table_io import atomic_path, read_table, scan_table, table_metadata, write_json, write_table, write_text
from pipeline.tables import EVAL, PROMPTS, REWARDS, ROLLOUTS, SCHEMA_VERSION, SELECTION, TABLES, Table
from tests.example_tables import example, with_value

ROOT = Path(__file__).resolve().parent.parent
EVERY_TABLE = [pytest.param(table, id=name) for name, table in TABLES.items()]
READERS = [read_table, lambda path, table: scan_table(path, table).collect()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "table.parquet"


def refusal(read: Callable[[Path, Table], object], path: Path, table: Table) -> str:
    with pytest.raises(BadInput) as caught:
        read(path, table)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


def leftovers(path: Path) -> list[str]:
    return [file.name for file in path.parent.iterdir() if file.name != path.name]


# Round trips ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", EVERY_TABLE)
def test_what_is_written_is_read(table: Table, path: Path) -> None:
    frame = example(table, 5)
    for column in table.columns:
        if column.nullable:
            frame = with_value(frame, 3, column.name, None)
    assert write_table(frame, path, table) == 5
    for back in (read_table(path, table), scan_table(path, table).collect(), pl.read_parquet(path)):
        assert back.schema == frame.schema
        assert back.equals(frame)
    assert leftovers(path) == []


def test_odd_values_survive(path: Path) -> None:
    frame = example(ROLLOUTS, 3)
    for row, text in enumerate(["", "\x00 \u2028 \U0001f600 \"'\\", "line\nline"]):
        frame = with_value(frame, row, "completion_text", text)
    frame = with_value(frame, 0, "seed", 2**63 - 1)
    frame = with_value(frame, 2, "sampling_logprobs", [-0.0, -3.4e38])
    write_table(frame, path, ROLLOUTS)
    assert read_table(path, ROLLOUTS).equals(frame)


@pytest.mark.parametrize("table", [table for table in TABLES.values() if table.may_be_empty], ids=lambda t: t.name)
def test_a_table_without_rows_survives(table: Table, path: Path) -> None:
    assert write_table(table.empty(), path, table) == 0
    assert read_table(path, table).equals(table.empty())
    assert scan_table(path, table).collect().schema == table.empty().schema
    assert write_table(table.empty().lazy(), path, table) == 0
    assert read_table(path, table).height == 0


@pytest.mark.parametrize("lazily", [False, True])
def test_a_table_that_needs_rows_is_not_written_without(lazily: bool, path: Path) -> None:
    empty = ROLLOUTS.empty()
    with pytest.raises(BadInput, match="it has no rows, and rollouts needs at least one"):
        write_table(empty.lazy() if lazily else empty, path, ROLLOUTS)
    assert list(path.parent.glob("*")) == []


def test_columns_of_terms_come_by_name_before_the_error(path: Path) -> None:
    frame = example(REWARDS).with_columns(reward_z=pl.lit(1.0), reward_a=pl.lit(0.5))
    shuffled = frame.select(sorted(frame.columns, reverse=True))
    write_table(shuffled, path, REWARDS)
    expected = [*list(REWARDS.schema)[:-1], "reward_a", "reward_z", "score_error"]
    assert read_table(path, REWARDS).columns == expected
    assert read_table(path, REWARDS).equals(frame.select(expected))


def test_metadata_is_read_back(path: Path) -> None:
    write_table(example(ROLLOUTS), path, ROLLOUTS, {"engine": "transformers", "temperature": "0.7"})
    expected = {"schema_version": SCHEMA_VERSION, "engine": "transformers", "temperature": "0.7"}
    assert table_metadata(path) == expected


def test_columns_are_compressed(path: Path) -> None:
    write_table(example(ROLLOUTS, 50), path, ROLLOUTS)
    with pq.ParquetFile(path) as file:
        group = file.metadata.row_group(0)
        assert {group.column(i).compression for i in range(group.num_columns)} == {"ZSTD"}


# Order and bytes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", EVERY_TABLE)
def test_the_same_rows_are_the_same_bytes(table: Table, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_io, "ROWS_PER_ROW_GROUP", 16)
    frame = example(table, 50)
    shuffled = frame.sample(fraction=1.0, shuffle=True, seed=1)
    variants: list[pl.DataFrame | pl.LazyFrame] = [frame, shuffled, frame.reverse(), frame.lazy(), *cut(frame)]
    contents = set()
    for rows in variants:
        assert write_table(rows, path, table) == 50
        contents.add(path.read_bytes())
        assert read_table(path, table).equals(frame)
    assert len(contents) == 1
    with pq.ParquetFile(path) as file:
        assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [16, 16, 16, 2]


def cut(frame: pl.DataFrame) -> list[pl.LazyFrame]:
    """`frame` as lazy frames whose chunks end in odd places."""
    places = [[1, 2, 30], [16, 32], [49]]
    return [
        pl.concat([frame[a:b].lazy() for a, b in zip([0, *ends], [*ends, frame.height], strict=True)])
        for ends in places
    ]


def test_rows_are_sorted_by_key(path: Path) -> None:
    frame = example(SELECTION, 20)
    frame = frame.with_columns(iteration=pl.lit(3, pl.UInt32), position=pl.Series(range(20), dtype=pl.UInt32))
    write_table(frame.sample(fraction=1.0, shuffle=True, seed=0), path, SELECTION)
    assert pl.read_parquet(path).equals(frame)
    # "before" comes first, as it does in the Enum.
    write_table(example(EVAL, 20).reverse(), path, EVAL)
    assert pl.read_parquet(path)["policy"].to_list() == ["before"] * 10 + ["after"] * 10


@pytest.mark.parametrize("order", [[0, 2, 1, 3], [3, 2, 1, 0], [0, 1, 3, 2]])
@pytest.mark.parametrize("size", [1, 2, 50])
def test_a_lazy_frame_out_of_order_is_refused(
    order: list[int], size: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_io, "ROWS_PER_ROW_GROUP", size)
    write_table(example(ROLLOUTS, 2), path, ROLLOUTS)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"rows of rollouts do not come in the order of \('completion_id',\)"):
        write_table(example(ROLLOUTS, 4)[order].lazy(), path, ROLLOUTS)
    assert path.read_bytes() == before
    assert leftovers(path) == []


def test_a_lazy_frame_that_breaks_a_rule_is_refused(path: Path) -> None:
    frame = with_value(example(ROLLOUTS), 1, "sampling_logprobs", [-0.5, float("nan")])
    with pytest.raises(BadInput, match="row 1: sampling_logprobs has an entry that is not finite"):
        write_table(frame.lazy(), path, ROLLOUTS)
    with pytest.raises(BadInput, match="column 'seed' is missing"):
        write_table(frame.drop("seed").lazy(), path, ROLLOUTS)
    assert list(path.parent.glob("*")) == []


def test_a_lazy_frame_of_several_key_columns_is_taken_in_the_order_of_its_enum(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_io, "ROWS_PER_ROW_GROUP", 2)
    frame = example(EVAL, 9)
    assert write_table(frame.lazy(), path, EVAL) == 9
    assert scan_table(path, EVAL).collect().equals(frame)


# Reading what a person changed ----------------------------------------------------------------------------------------


def write_unchecked(frame: pl.DataFrame, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.write_parquet(path)


@pytest.mark.parametrize("read", READERS, ids=["read", "scan"])
def test_rules_hold_for_what_is_read(read: Callable[[Path, Table], object], path: Path) -> None:
    frame = example(ROLLOUTS, 4)
    for changed, problem in (
        (frame.drop("seed"), "column 'seed' is missing"),
        (frame.with_columns(note=pl.lit(1)), "column 'note' is not a column of rollouts"),
        (frame.with_columns(pl.col("iteration").cast(pl.Int64)), "column 'iteration' is Int64, not UInt32"),
        (frame.with_columns(pl.col("finish_reason").cast(pl.String)), "column 'finish_reason' is String, not Enum"),
        (with_value(frame, 2, "seed", None), "row 2: seed is null: (None,)"),
        (with_value(frame, 2, "sampling_logprobs", [-1.0]), "row 2: sampling_logprobs has another number of entries"),
        (with_value(frame, 2, "sampling_logprobs", [-1.0, float("nan")]), "row 2: sampling_logprobs has an entry"),
        (frame[[0, 1, 1, 2]], "row 1: completion_id is the same in two rows"),
        (frame[[0, 3, 2, 1]], "row 1: completion_id is out of place, as rows are sorted by it"),
        (frame.clear(), "it has no rows, and rollouts needs at least one"),
    ):
        write_unchecked(changed, path)
        assert refusal(read, path, ROLLOUTS).startswith(problem)


@pytest.mark.parametrize("read", READERS, ids=["read", "scan"])
def test_a_file_of_another_writer_is_read(read: Callable[[Path, Table], pl.DataFrame], path: Path) -> None:
    frame = example(PROMPTS, 4)
    write_unchecked(frame, path)
    assert read(path, PROMPTS).equals(frame)


@pytest.mark.parametrize("first", [0, 15, 16, 30, 48])
def test_scan_finds_twins_in_different_batches(first: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_io, "ROWS_PER_BATCH", 16)
    frame = example(ROLLOUTS, 50)
    twins = pl.concat([frame[: first + 1], frame[first:]])  # beside each other, perhaps on both sides of a border
    write_unchecked(twins, path)
    twin = frame["completion_id"][first]
    for columns in (None, ["seed"], ["completion_id"]):
        message = refusal(lambda path, table, columns=columns: scan_table(path, table, columns), path, ROLLOUTS)  # type: ignore[misc]
        assert f"row {first}: completion_id is the same in two rows, and it is the key: ('{twin}',)" in message
    write_unchecked(pl.concat([frame, frame[:1]]), path)  # as far apart as can be
    assert "completion_id is out of place" in refusal(scan_table, path, ROLLOUTS)


def test_scan_counts_rows_from_the_start_of_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_io, "ROWS_PER_BATCH", 16)
    write_unchecked(with_value(example(ROLLOUTS, 50), 37, "seed", None), path)
    assert refusal(scan_table, path, ROLLOUTS).startswith("row 37: seed is null: (None,)")


def test_scan_gives_the_columns_asked_for_and_checks_these(path: Path) -> None:
    frame = with_value(example(ROLLOUTS, 5), 2, "sampling_logprobs", [-1.0])
    write_unchecked(frame, path)
    assert scan_table(path, ROLLOUTS, ["seed", "group_id"]).collect().equals(frame.select("seed", "group_id"))
    columns = ["sampling_logprobs", "completion_token_ids"]
    assert "row 2" in refusal(lambda path, table: scan_table(path, table, columns), path, ROLLOUTS)


@pytest.mark.parametrize("read", READERS, ids=["read", "scan"])
def test_another_schema_version_is_refused(read: Callable[[Path, Table], object], path: Path) -> None:
    write_table(example(ROLLOUTS), path, ROLLOUTS, {"schema_version": "99"})
    message = refusal(read, path, ROLLOUTS)
    assert message.startswith(f"its schema_version is '99', and this release reads {SCHEMA_VERSION}. ")


# Damage ---------------------------------------------------------------------------------------------------------------


def damage(path: Path, place: int, bit: int = 3) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("read", READERS, ids=["read", "scan"])
def test_no_flipped_bit_goes_unnoticed(read: Callable[[Path, Table], pl.DataFrame], path: Path) -> None:
    frame = example(ROLLOUTS, 40)
    write_table(frame, path, ROLLOUTS)
    good = path.read_bytes()
    n_noticed = 0
    # Every place of the data would take minutes; a prime stride meets every bit of a byte and every kind of page.
    for bit in range(0, 8 * len(good), 137):
        path.write_bytes(good)
        damage(path, bit // 8, bit % 8)
        rows = rows_or_refusal(read, path)
        if isinstance(rows, str):
            # The lazy read comes after the check, and Polars is stricter about the footer than Arrow.
            assert rows.startswith(f"{path}: ") or read is not read_table
            n_noticed += 1
        else:
            assert rows.equals(frame), f"bit {bit} changed the rows"
    assert n_noticed > 100


def rows_or_refusal(read: Callable[[Path, Table], pl.DataFrame], path: Path) -> pl.DataFrame | str:
    try:
        return read(path, ROLLOUTS)
    except (BadInput, pl.exceptions.PolarsError) as error:
        return str(error)


@pytest.mark.parametrize("read", READERS, ids=["read", "scan"])
def test_a_file_that_is_no_whole_parquet_is_named(read: Callable[[Path, Table], object], path: Path) -> None:
    write_table(example(ROLLOUTS, 40), path, ROLLOUTS)
    good = path.read_bytes()
    for size in (0, 3, 4, 12, len(good) // 2, len(good) - 9, len(good) - 1):
        path.write_bytes(good[:size])
        assert refusal(read, path, ROLLOUTS).startswith("it can't be read as Parquet (")
    for content in (b"prompt_id,answer\nx,1\n", b"PAR1" + b"\x00" * 100 + b"PAR1", b"\x00" * 5000, good[100:]):
        path.write_bytes(content)
        assert refusal(read, path, ROLLOUTS).startswith("it can't be read as Parquet (")
        assert "dvc checkout" in refusal(read, path, ROLLOUTS)


@pytest.mark.parametrize("read", READERS, ids=["read", "scan"])
def test_a_missing_file_is_named(read: Callable[[Path, Table], object], path: Path) -> None:
    expected = "there is no such file, and it holds the table rollouts. Run `dvc repro` to make it."
    assert refusal(read, path, ROLLOUTS) == expected
    path.mkdir(parents=True)
    assert refusal(read, path, ROLLOUTS) == expected


def test_damaged_metadata_is_named(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"nothing")
    with pytest.raises(BadInput, match="it can't be read as Parquet"):
        table_metadata(path)


# Atomic writes --------------------------------------------------------------------------------------------------------

WRITER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from pipeline.table_io import write_table
    from pipeline.tables import SELECTION
    from tests.example_tables import example
    path, whole = Path(sys.argv[1]), example(SELECTION, 4000)
    print("ready", flush=True)
    while True:
        for n_rows in (1000, 4000):
            write_table(whole[:n_rows].lazy(), path, SELECTION)
    """
)


def test_a_killed_write_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """Twenty processes that write without pause are killed, four at a time, at random moments."""
    moments = random.Random(0)
    sizes, n_halfway = set(), 0
    for round_ in range(5):
        paths = [tmp_path / f"{round_}-{i}" / "table.parquet" for i in range(4)]
        for path in paths:
            write_table(example(SELECTION, 10), path, SELECTION)
        writers = [start_writer(path) for path in paths]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for path, writer in zip(paths, writers, strict=True):
            try:
                writer.wait(timeout=moments.uniform(0.0, 0.05))
            except subprocess.TimeoutExpired:
                writer.kill()
            assert writer.wait() == -signal.SIGKILL
            writer.stdout.close()  # type: ignore[union-attr]
            frame = read_table(path, SELECTION)
            assert frame.equals(example(SELECTION, frame.height))
            sizes.add(frame.height)
            n_halfway += len(leftovers(path))
            write_table(example(SELECTION, 5), path, SELECTION)
            assert leftovers(path) == []
    assert sizes <= {10, 1000, 4000}
    assert len(sizes) > 1
    assert n_halfway > 0


def start_writer(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        cwd=ROOT,
        env={**os.environ, "POLARS_MAX_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


def fail_halfway(path: Path, write: Callable[[Path], object]) -> None:
    with atomic_path(path) as temporary:
        write(temporary)
        raise ZeroDivisionError


def write_folder(path: Path, name: str) -> None:
    (path / "deep").mkdir(parents=True)
    (path / "deep" / name).write_text(name)


def test_a_failed_write_leaves_the_old_file(path: Path) -> None:
    write_text("old", path)
    with pytest.raises(ZeroDivisionError):
        fail_halfway(path, lambda temporary: temporary.write_text("new"))
    assert path.read_text() == "old"
    assert leftovers(path) == []


def test_a_folder_is_replaced_whole(path: Path) -> None:
    for name in ("old", "new"):
        with atomic_path(path) as temporary:
            write_folder(temporary, name)
    assert [file.name for file in path.rglob("*")] == ["deep", "new"]
    with pytest.raises(ZeroDivisionError):
        fail_halfway(path, lambda temporary: write_folder(temporary, "half"))
    assert [file.name for file in path.rglob("*")] == ["deep", "new"]
    assert leftovers(path) == []


def test_a_folder_takes_the_place_of_a_file(path: Path) -> None:
    write_text("a file", path)
    with atomic_path(path) as temporary:
        temporary.mkdir()
        (temporary / "inside").write_text("x")
    assert [file.name for file in path.iterdir()] == ["inside"]
    assert leftovers(path) == []


def test_a_read_only_hard_link_is_replaced_and_not_written_through(path: Path, tmp_path: Path) -> None:
    cached = tmp_path / "cached"
    cached.write_text("cached")
    cached.chmod(0o444)
    path.parent.mkdir()
    os.link(cached, path)
    write_text("new", path)
    assert (cached.read_text(), path.read_text()) == ("cached", "new")


def test_leftovers_of_dead_processes_are_removed_and_of_live_ones_kept(path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    path.parent.mkdir()
    names = {
        "dead": f".tmp-{path.name}.{dead.pid}",
        "dead, old": f".tmp-{path.name}.{dead.pid}.old",
        "alive": f".tmp-{path.name}.{os.getppid()}",
        "another table's": f".tmp-other.parquet.{dead.pid}",
        "a person's": f".tmp-{path.name}.backup",
    }
    for name in names.values():
        (path.parent / name).write_text("x")
    (path.parent / names["dead, old"]).unlink()
    (path.parent / names["dead, old"]).mkdir()
    (path.parent / names["dead, old"] / "file").write_text("x")
    write_text("new", path)
    assert sorted(leftovers(path)) == sorted(names[key] for key in ("alive", "another table's", "a person's"))


def test_leftovers_of_a_killed_process_that_nobody_waited_for_are_removed(path: Path) -> None:
    zombie = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    path.parent.mkdir()
    leftover = path.parent / f".tmp-{path.name}.{zombie.pid}"
    leftover.write_text("x")
    write_text("new", path)
    assert leftovers(path) == [leftover.name]
    zombie.kill()
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not taken away
    write_text("newer", path)
    assert leftovers(path) == []
    zombie.communicate()


def test_leftovers_of_a_dead_process_of_the_same_number_are_removed(path: Path) -> None:
    leftover = path.parent / f".tmp-{path.name}.{os.getpid()}"
    leftover.mkdir(parents=True)
    (leftover / "half").write_text("x")
    with atomic_path(path) as temporary:
        temporary.mkdir()
        (temporary / "whole").write_text("x")
    assert [file.name for file in path.iterdir()] == ["whole"]
    assert leftovers(path) == []


def test_json_is_sorted_and_has_no_nan(path: Path) -> None:
    write_json({"b": 1, "a": [None, "\u00e9"]}, path)
    assert path.read_text(encoding="utf-8") == '{\n  "a": [\n    null,\n    "\u00e9"\n  ],\n  "b": 1\n}\n'
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON compliant"):
            write_json({"x": bad}, path)
    assert '"b": 1' in path.read_text(encoding="utf-8")


def test_content_is_on_the_disk_before_its_name_is_and_the_name_before_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is flushed before it is renamed, and its folder after it."""
    flushed: list[tuple[int, bool]] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append((os.fstat(descriptor).st_ino, path.exists())))
    write_table(example(SELECTION), path, SELECTION)
    assert flushed == [(path.stat().st_ino, False), (path.parent.stat().st_ino, True)]


def test_a_disk_without_space_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(example(SELECTION, 3), path, SELECTION)
    before = path.read_bytes()

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_table(example(SELECTION, 9), path, SELECTION)
    assert path.read_bytes() == before
    assert leftovers(path) == []
    shutil.rmtree(path.parent)
