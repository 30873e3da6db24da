"""Where things are: the main checkout, the worktrees of runs, DVC's cache."""

from __future__ import annotations

import configparser
import io
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import BadInput
from pipeline.table_io import write_text
from pipeline.versioning.git import git

LOCAL = Path(".rollbook")


@dataclass(frozen=True)
class Repository:
    """The main checkout in the folder `root`, whose `.git` and DVC cache the worktrees of all runs share."""

    root: Path

    @staticmethod
    def find(start: Path | None = None) -> Repository:
        """The repository that the folder `start` (the current one) is in, be it the main checkout or a worktree.

        Raises:
            BadInput: there is none, or it has no checkout.
        """
        common = Path(git("rev-parse", "--path-format=absolute", "--git-common-dir", cwd=start))
        if common.name != ".git":
            problem = "a bare repository or a submodule keeps its Git folder there, and runs need one with a checkout"
            raise BadInput(str(common), problem, "Clone it")
        return Repository(common.parent)

    def worktree(self, run: str) -> Path:
        """Where `run` trains."""
        return self.root / LOCAL / "worktrees" / run

    @property
    def locks(self) -> Path:
        """The folder of the locks that trainers hold."""
        return self.root / LOCAL / "locks"

    @property
    def cache_dir(self) -> Path:
        """DVC's cache, which holds every artifact of every run."""
        return self.root / ".dvc" / Path(dvc_config(self.root).get("cache", "dir", fallback="cache")).expanduser()

    def configure_worktree(self, worktree: Path) -> None:
        """Have DVC in `worktree` use this repository's cache, remotes and settings."""
        # The committed settings too: those of the run's own commit may be older than the remote.
        config = _read_config(self.root, [self.root / ".dvc" / "config", self.root / ".dvc" / "config.local"])
        for values in config.values():
            # DVC takes a relative path from the folder of the config file, which is another one here.
            if _is_relative(values.get("url", "")):
                values["url"] = str((self.root / ".dvc" / values["url"]).resolve())
        if not config.has_section("cache"):
            config.add_section("cache")
        config["cache"]["dir"] = str(self.cache_dir)
        text = io.StringIO()
        config.write(text)
        target = worktree / ".dvc" / "config.local"
        if not target.is_file() or target.read_text(encoding="utf-8") != text.getvalue():
            write_text(text.getvalue(), target)


def dvc_config(checkout: Path) -> configparser.ConfigParser:
    """DVC's settings in `checkout`: of the system, the user, the repository, and local ones, later over earlier.

    Paths in them are relative to `.dvc`.
    """
    from dvc.dirs import global_config_dir, system_config_dir

    folders = [Path(system_config_dir()), Path(global_config_dir()), checkout / ".dvc"]
    return _read_config(checkout, [*(folder / "config" for folder in folders), checkout / ".dvc" / "config.local"])


def _read_config(checkout: Path, files: list[Path]) -> configparser.ConfigParser:
    config = configparser.ConfigParser(interpolation=None)
    try:
        config.read(files, encoding="utf-8")
    except configparser.Error as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"{checkout / '.dvc'}: config", f"DVC's settings can't be read ({reason})", "Mend it") from error
    return config


def _is_relative(url: str) -> bool:
    return bool(url) and "://" not in url and not url.startswith("~") and not Path(url).is_absolute()


def has_remote(checkout: Path) -> bool:
    """Whether `dvc push` has somewhere to push to."""
    return bool(dvc_config(checkout).get("core", "remote", fallback=""))
