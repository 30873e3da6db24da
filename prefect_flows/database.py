"""The database of a server that lives as long as a training: logs and states, of which the run needs none."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def set_aside_if_damaged(file: Path) -> Path | None:
    """Rename SQLite's database `file` where it is damaged; return its new name, None where it is whole or missing."""
    if not file.exists() or is_whole(file):
        return None
    for rest in ("-wal", "-shm"):  # SQLite would replay these in a new database of the same name
        file.with_name(f"{file.name}{rest}").unlink(missing_ok=True)
    return file.replace(file.with_name(f"{file.name}.damaged"))


def is_whole(file: Path) -> bool:
    """Whether SQLite finds no damage in `file`."""
    try:
        with closing(sqlite3.connect(file)) as database:
            database.text_factory = bytes  # what it says of damage need not be text
            return bool(database.execute("PRAGMA quick_check(1)").fetchone() == (b"ok",))
    except sqlite3.DatabaseError as error:
        return error.sqlite_errorcode == sqlite3.SQLITE_BUSY  # in use, which is no damage
