"""Messages over a descriptor: four bytes of length, then that much JSON."""

from __future__ import annotations

import json
import os
from typing import Any

HEADER_BYTES = 4
NO_LIMIT = (1 << 8 * HEADER_BYTES) - 1


def pack(message: dict[str, Any]) -> bytes:
    r"""`message` as a frame.

    >>> pack({"hello": 1})
    b'\x00\x00\x00\x0b{"hello":1}'
    """
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def send(descriptor: int, message: dict[str, Any], max_bytes: int = NO_LIMIT) -> None:
    """Write `message`, all of it; where it is longer than `max_bytes`, write that it is too large instead."""
    frame = pack(message)
    rest = memoryview(frame if len(frame) <= max_bytes else pack({"is_too_large": True}))
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def receive(descriptor: int) -> dict[str, Any]:
    """The next message.

    Raises:
        EOFError: the other side is gone.
    """
    size = int.from_bytes(_read(descriptor, HEADER_BYTES), "big")
    message: dict[str, Any] = json.loads(_read(descriptor, size))
    return message


def _read(descriptor: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 16))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
