from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from prefect_flows.database import set_aside_if_damaged


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database of some pages."""
    file = tmp_path / "prefect.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE log (message TEXT)")
        database.executemany("INSERT INTO log VALUES (?)", [("a line" * 100,)] * 100)
        database.commit()
    return file


def test_a_whole_one_stays(file: Path) -> None:
    assert set_aside_if_damaged(file) is None
    assert file.exists()
    assert set_aside_if_damaged(file.with_name("missing.db")) is None


def test_one_in_use_is_not_damaged(file: Path) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.execute("BEGIN EXCLUSIVE")
        assert set_aside_if_damaged(file) is None


@pytest.mark.parametrize("damage", ["torn", "overwritten", "no database"])
def test_a_damaged_one_is_set_aside_with_its_journal(file: Path, damage: str) -> None:
    content = file.read_bytes()
    middle = len(content) // 2
    damaged = {
        "torn": content[:middle],
        "overwritten": content[:4096] + b"x" * (len(content) - 4096),
        "no database": b"garbage" * 1000,
    }[damage]
    file.write_bytes(damaged)
    journal = file.with_name("prefect.db-wal")
    journal.write_bytes(b"of the damaged one")
    aside = set_aside_if_damaged(file)
    assert aside == file.with_name("prefect.db.damaged")
    assert aside.read_bytes() == damaged
    assert not file.exists()
    assert not journal.exists()
