"""DVC's remote, by the md5 of objects: DVC's own commands reach only what a checkout or a whole history names.

`dvc fetch --all-commits` skips commits whose `.dvc/config` lacks the remote, and says nothing.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import BadInput, TransientError, first_line
from pipeline.versioning.lockfile import FOLDER


class Remote:
    """The default remote of a checkout, open; see `open_remote`."""

    def __init__(self, repo: Any) -> None:
        self._cache = repo.cache.local
        self._store = repo.cloud.get_remote_odb(command="fetch")

    @property
    def url(self) -> str:
        """Where it is."""
        return str(self._store.fs.unstrip_protocol(self._store.path))

    def present(self, md5s: Collection[str]) -> set[str]:
        """Those of `md5s` that it has."""
        return set(self._store.oids_exist(list(md5s))) if md5s else set()

    def n_bytes(self, md5: str) -> int:
        """The size of an object that it has."""
        return int(self._store.fs.size(self._store.oid_to_path(md5)) or 0)

    def download(self, md5s: Collection[str]) -> None:
        """Bring those of `md5s` that it has into DVC's cache, each whole, verified and read-only, or not at all.

        Raises:
            BadInput: the remote's object is damaged.
        """
        from dvc.fs.callbacks import TqdmCallback
        from dvc_data.hashfile.hash_info import HashInfo
        from dvc_data.hashfile.transfer import transfer

        wanted = {HashInfo("md5", md5) for md5 in self.present(md5s)}
        if wanted:
            with _reasons() as reasons, TqdmCallback(desc=f"fetching from {self.url}", unit="file") as progress:
                transfer(self._store, self._cache, wanted, verify=True, callback=progress)
            for reason in reasons:
                raise reason
            for info in wanted:
                if not self._cache.exists(info.value):
                    problem = f"its object {info.value} is damaged: the md5 of what it has is another"
                    raise BadInput(self.url, problem, "Remove it there, and `dvc push` from where it is whole")

    def delete(self, md5s: Collection[str]) -> None:
        """Remove objects, lists of folders first: DVC takes a list that is there to mean that its files are, too."""
        for md5 in sorted(md5s, key=lambda md5: not md5.endswith(FOLDER)):
            try:
                self._store.fs.remove(self._store.oid_to_path(md5))
            except FileNotFoundError:
                continue


@contextmanager
def _reasons() -> Iterator[list[BaseException]]:
    """Why single objects can't be transferred, which DVC gives to its log alone."""
    reasons: list[BaseException] = []

    def take(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1]:
            reasons.append(record.exc_info[1])
        return False

    logger = logging.getLogger("dvc_data.hashfile.transfer")
    logger.addFilter(take)
    try:
        yield reasons
    finally:
        logger.removeFilter(take)


@contextmanager
def open_remote(checkout: Path) -> Iterator[Remote]:
    """The default remote that DVC's settings in `checkout` name.

    Raises:
        BadInput: they name none, or one that keeps files by name and not by md5.
        TransientError: it can't be reached.
    """
    # It takes a second to import, which only those who need the remote should wait for.
    from dvc.config import ConfigError, NoRemoteError
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo(str(checkout)) as repo:
            yield Remote(repo)
    except ConfigError as error:
        problem = "there is no default remote" if isinstance(error, NoRemoteError) else first_line(error)
        remedy = "Name one with `dvc remote add --default NAME URL`"
        raise BadInput(f"{checkout / '.dvc/config'}", problem, remedy) from error
    except (DvcException, OSError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        raise TransientError("DVC's remote", first_line(error), "See `dvc remote list`, and try again") from error
