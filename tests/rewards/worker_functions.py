"""What the tests of workers call in them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import NoReturn


def double(number: int, seconds: float = 0.0) -> int:
    time.sleep(seconds)
    return 2 * number


def process_id() -> int:
    return os.getpid()


def compute_for_ever() -> int:
    power: int = 7 ** (8**9)
    return power


def ignore_everything() -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(1)


def crash() -> None:
    ctypes.string_at(0)


def take_memory() -> int:
    return len(bytearray(1 << 40))


def leave() -> NoReturn:
    sys.exit("enough")


class AwkwardError(Exception):
    """It can be neither pickled nor shown."""

    def __init__(self, one: object, two: object) -> None:
        super().__init__()

    def __str__(self) -> str:
        raise RuntimeError


def raise_awkward() -> NoReturn:
    raise AwkwardError(1, 2)


def return_awkward() -> object:
    return lambda: None
