"""What servers call models: a name says which weights are meant, so that asking for others is refused by the server."""

from __future__ import annotations

PREFIX = "rollbook-"

WHOLE_MODEL = "rollbook"
"""A whole model's name stays when its weights are exchanged; which ones it has, the server's `weight_version` says."""


def name_of(fingerprint: str) -> str:
    """The name of a base model, or of an adapter on one, with this fingerprint.

    >>> name_of("00ff")
    'rollbook-00ff'
    """
    return f"{PREFIX}{fingerprint}"
