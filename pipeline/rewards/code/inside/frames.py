"""Messages over a descriptor: four bytes of length, then that much of content.

Into a sandbox it is Python's marshal, which is fast. Out of it comes JSON, since marshal trusts what it reads.
"""

from __future__ import annotations

import marshal
import os

from .json_text import json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HEADER_BYTES = 4
NO_LIMIT = (1 << 8 * HEADER_BYTES) - 1


def pack(content: bytes) -> bytes:
    r"""`content` as a frame.

    >>> pack(b"abc")
    b'\x00\x00\x00\x03abc'
    """
    return len(content).to_bytes(HEADER_BYTES, "big") + content


def pack_request(message: dict[str, Any]) -> bytes:
    """`message` as a frame for a sandbox."""
    return pack(marshal.dumps(message))


def send(descriptor: int, message: dict[str, Any], max_bytes: int = NO_LIMIT) -> None:
    """Write `message`, all of it; where it is longer than `max_bytes`, write that it is too large instead."""
    content = json_text(message).encode("utf-8", "surrogatepass")
    rest = memoryview(pack(content if len(content) <= max_bytes else b'{"is_too_large":true}'))
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def receive(descriptor: int) -> dict[str, Any]:
    """The next message of the scorer.

    Raises:
        EOFError: the scorer is gone.
    """
    size = int.from_bytes(_read(descriptor, HEADER_BYTES), "big")
    message: dict[str, Any] = marshal.loads(_read(descriptor, size))
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
