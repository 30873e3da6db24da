"""Plain values as JSON with their types, the only form in which values leave or enter a sandbox.

None, booleans and texts are themselves, a list is a list, and every other value is an object of one key, its type.
Sets and the pairs of a dict are sorted, so that equal values have equal forms, and nobody needs to hash them.
An instance of a subclass is what its base holds: methods of its own have no say.
"""

from __future__ import annotations

from .json_text import json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

MAX_DEPTH = 64
MAX_VALUES = 200_000


class TooLargeError(Exception):
    """A value is nested too deep, refers to itself, or holds too many values."""


class NotPlainError(Exception):
    """A value is, or holds, an object that is no plain value."""


def encode(value: object, stand_in: Callable[[object], Any] | None = None) -> Any:
    """`value` in its JSON form; an object that is no plain value has the form that `stand_in` makes of it.

    >>> encode([1, 1.0, True, "a", None])
    [{'int': '0x1'}, {'float': '0x1.0000000000000p+0'}, True, 'a', None]
    >>> encode({(2,): {b"x"}})
    {'dict': [[{'tuple': [{'int': '0x2'}]}, {'set': [{'bytes': '78'}]}]]}

    Raises:
        TooLargeError: deeper than `MAX_DEPTH`, or more than `MAX_VALUES` values.
        NotPlainError: neither None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset nor dict, and
            there is no `stand_in`.
    """
    return _Encoder(stand_in or _refuse).encode(value, 0)


def _refuse(value: object) -> NoReturn:
    raise NotPlainError(type(value).__name__)


class _Encoder:
    def __init__(self, stand_in: Callable[[object], Any]) -> None:
        self._stand_in = stand_in
        self._n_values = 0

    def encode(self, value: object, depth: int) -> Any:
        self._n_values += 1
        if depth > MAX_DEPTH or self._n_values > MAX_VALUES:
            raise TooLargeError
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return {"int": hex(int.__add__(value, 0))}
        if isinstance(value, float):
            return {"float": float.hex(value)}
        if isinstance(value, complex):
            return {"complex": complex.__repr__(value)}
        if isinstance(value, bytes):
            return {"bytes": bytes.hex(value)}
        return self._encode_container(value, depth + 1)

    def _encode_container(self, value: object, depth: int) -> Any:
        if isinstance(value, list):
            return [self.encode(each, depth) for each in list.__iter__(value)]
        if isinstance(value, tuple):
            return {"tuple": [self.encode(each, depth) for each in tuple.__iter__(value)]}
        if isinstance(value, dict):
            pairs = [[self.encode(key, depth), self.encode(each, depth)] for key, each in dict.items(value)]
            return {"dict": sorted(pairs, key=lambda pair: json_text(pair[0]))}
        if isinstance(value, set):
            return {"set": self._sorted(set.__iter__(value), depth)}
        if isinstance(value, frozenset):
            return {"frozenset": self._sorted(frozenset.__iter__(value), depth)}
        return self._stand_in(value)

    def _sorted(self, values: Iterator[object], depth: int) -> list[Any]:
        return sorted((self.encode(each, depth) for each in values), key=json_text)


def decode(form: Any, find: Callable[[Any], Any] | None = None) -> Any:
    """The value whose form is `form`; `find` gives the object for a stand-in, `{"object": ...}`.

    >>> decode(encode({"a": (1, {2.5})}))
    {'a': (1, {2.5})}

    Raises:
        ValueError: `form` is not the form of a value.
    """
    if form is None or isinstance(form, bool | str):
        return form
    if isinstance(form, list):
        return [decode(each, find) for each in form]
    if not isinstance(form, dict) or len(form) != 1:
        raise ValueError(f"no form of a value: {form!r:.100}")
    ((kind, content),) = form.items()
    try:
        if kind in _ATOMS:
            return _ATOMS[kind](content)
        if kind in _CONTAINERS:
            return _CONTAINERS[kind](decode(each, find) for each in content)
        if kind == "object" and find is not None:
            return find(content)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"no form of a value: {form!r:.100}") from error
    raise ValueError(f"no kind of value: {kind!r:.100}")


_ATOMS: dict[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "float": float.fromhex,
    "complex": complex,
    "bytes": bytes.fromhex,
}
_CONTAINERS: dict[str, Callable[[Iterator[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
}
