"""Errors that a person can act on, and the exit code each kind means."""

from __future__ import annotations

import errno

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
DISK_ERRORS = (*_FULL, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
"""What an `OSError` says where a disk is full, or a place is not to be written to."""


class RollbookError(Exception):
    """An error with a message for the user, printed without a traceback."""

    kind = "bad_input"
    exit_code = 1


class BadInput(RollbookError):
    """Something the user gave is wrong.

    The message reads ``<where>: <what is wrong>. <what to do>`` where ``where`` names the file and the row,
    column or key, and ``what is wrong`` gives the value and the rule.

    >>> print(BadInput("params.yaml: sampling.top_p", "0.9 is not 1", "Set it to 1"))
    params.yaml: sampling.top_p: 0.9 is not 1. Set it to 1.
    """

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        super().__init__(f"{where}: {problem.rstrip('.')}. {remedy.rstrip('.')}.")


class TransientError(BadInput):
    """Something outside failed and may work on another try: a network, a registry, a busy device."""

    kind = "transient"
    exit_code = 75


def first_line(error: BaseException) -> str:
    """The first line of what a library's error says, or its type where it says nothing.

    >>> first_line(ValueError("no such thing\\nsee the manual")), first_line(KeyError())
    ('no such thing', 'KeyError')
    """
    return (str(error).splitlines() or [type(error).__name__])[0]
