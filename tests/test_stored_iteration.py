"""Where a stored iteration is laid out: what is left of a killed process goes, and what is in use stays."""

from __future__ import annotations

from pathlib import Path

from pipeline.stored_iteration import temporary_folder


def test_abandoned_folders_go_and_those_in_use_stay(tmp_path: Path) -> None:
    parent = tmp_path / "a/b"
    abandoned = parent / "tmp1"
    (abandoned / "data/base").mkdir(parents=True)
    with temporary_folder(parent) as one:
        assert not abandoned.exists()
        (one / "weights").touch()
        with temporary_folder(parent) as other:
            assert set(parent.iterdir()) == {one, other}
            assert (one / "weights").is_file()
        assert set(parent.iterdir()) == {one}
    assert list(parent.iterdir()) == []
