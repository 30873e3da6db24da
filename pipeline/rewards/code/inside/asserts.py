"""Runs assert tests in a sandbox of their own, where the solution is not: they call it, and get plain values back."""

from __future__ import annotations

import builtins

from .channel import Channel
from .objects import MAX_MESSAGE_CHARACTERS
from .values import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

_ENDS_LOOPS = (StopIteration, StopAsyncIteration)


def main(results: int) -> None:
    """Serve the scorer's requests until it goes."""
    channel = Channel(results)
    channel.confine()
    while True:
        channel.send(_run_test(channel, channel.receive()["test"]))


def _run_test(channel: Channel, test: str) -> dict[str, Any]:
    solution = _Solution(channel)
    namespace: dict[str, Any] = {"__name__": "test"}
    try:
        compiled = compile(test, "test.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return {"broken": f"it can't be compiled: {type(error).__name__}: {error}"[:MAX_MESSAGE_CHARACTERS]}
    names = [*channel.task["functions"], *channel.task["classes"]]
    namespace |= {name: solution.stand_in_for([name]) for name in names}
    try:
        exec(compiled, namespace)
    except BaseException as error:  # whatever a test raises, it did not pass
        message = f"{type(error).__name__}: {error}"[:MAX_MESSAGE_CHARACTERS]
        if solution.broken:
            return {"broken": solution.broken}
        if not solution.n_requests:
            return {"broken": f"it fails before it calls the solution: {message}"}
        return {"has_passed": False, "message": message}
    if not solution.n_requests:
        return {"broken": "it passes without a call of the solution"}
    return {"has_passed": True, "message": ""}


class _Solution:
    """The solution in its sandbox, through the scorer."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._stand_in = _Object if channel.task["classes"] else _Result
        self._has_given_objects = False
        self.n_requests = 0
        self.broken = ""

    def do(self, operation: str, target: int | list[str], *args: Any, **kwargs: Any) -> Any:
        """What `operation` on `target` gives: a plain value, or a stand-in for an object that stays where it is."""
        self.n_requests += 1
        forms = {"args": encode(args, self._form)["tuple"], "kwargs": encode(kwargs, self._form)}
        wants_args = self._channel.task["in_place"]
        request = {"operation": operation, "target": target, "wants_args": wants_args}
        self._channel.send({"request": {**request, **forms}})
        reply = self._channel.receive()
        if wants_args and "args" in reply:  # a solution may send some that nobody asked for
            for before, after in zip(args, decode(reply["args"]), strict=True):
                _make_equal(before, after)
        if "raised" in reply:
            if operation == "next" and reply["base"] == "StopIteration":
                raise StopIteration
            raise _error(reply["base"], reply["message"])
        if "object" in reply:
            self._has_given_objects = True
            return self.stand_in_for(reply["object"])
        return decode(reply["value"])

    def stand_in_for(self, target: int | list[str]) -> Any:
        """What a test gets for something of the solution that is no plain value."""
        return self._stand_in(self, target)

    def _form(self, value: object) -> dict[str, Any]:
        """The form of something of the solution that a test hands back to it."""
        if isinstance(value, _Result):
            return {"object": value._target}
        problem = f"it hands the solution a {type(value).__name__}, which can't get from sandbox to sandbox"
        if not self._has_given_objects:  # whose methods are the solution's, so that the test may not be to blame
            self.broken = problem
        raise TypeError(problem)


def _make_equal(before: Any, after: Any) -> None:
    """Do to a mutable argument what the call did to it."""
    if isinstance(before, list):
        before[:] = after
    elif isinstance(before, dict | set):
        before.clear()
        before.update(after)


def _error(name: str, message: str) -> Exception:
    """The built-in error of that name, which a test may expect; an error of the solution's own is that of its base.

    A StopIteration would end a loop of the test over `map(function, inputs)` early, and pass it.
    """
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _ENDS_LOOPS):
        try:
            return kind(message)
        except TypeError:  # UnicodeDecodeError takes five arguments
            pass
    return RuntimeError(f"{name}: {message}")


class _Result:
    """A stand-in for a function, or for what one returned that is no plain value: it can be called, and iterated over.

    It is neither true nor equal to anything. What it yields is asked for once, and is the same each time: what answers
    as it likes could be a list in order for one line of a test, and one with the right items for the next.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, solution: _Solution, target: int | list[str]) -> None:
        self._solution = solution
        self._target = target
        self._iterator: Any = None
        self._items: list[Any] = []
        self._n_taken = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._solution.do("call", self._target, *args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        position = self._n_taken
        while self._has_item(position):
            yield self._items[position]
            position += 1

    def __next__(self) -> Any:
        if not self._has_item(self._n_taken):
            raise StopIteration
        self._n_taken += 1
        return self._items[self._n_taken - 1]

    def _has_item(self, position: int) -> bool:
        if self._iterator is None:
            self._iterator = self._solution.do("iterate", self._target)
        try:
            while position >= len(self._items):
                self._items.append(self._solution.do("next", self._iterator._target))
        except StopIteration:
            return False
        return True

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError("it is no plain value, so it is neither true nor equal to anything")

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse


class _Object(_Result):
    """A stand-in where the solution has to define a class: its objects have methods, attributes, items and a length.

    They are what the solution says they are, each time that a test asks.
    """

    def __getattr__(self, name: str) -> Any:
        return self._solution.do("get", self._target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):  # the stand-in's own
            object.__setattr__(self, name, value)
        else:
            self._solution.do("set", self._target, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._solution.do("item", self._target, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._solution.do("set_item", self._target, key, value)

    def __contains__(self, item: Any) -> bool:
        is_in: bool = _exactly(bool, self._solution.do("contains", self._target, item))
        return is_in

    def __iter__(self) -> Iterator[Any]:
        items: list[Any] = _exactly(list, self._solution.do("list", self._target))
        return iter(items)

    def __len__(self) -> int:
        length: int = _exactly(int, self._solution.do("length", self._target))
        return length

    def __str__(self) -> str:
        text: str = _exactly(str, self._solution.do("str", self._target))
        return text

    def __repr__(self) -> str:
        text: str = _exactly(str, self._solution.do("repr", self._target))
        return text

    def __eq__(self, other: object) -> NoReturn:
        if isinstance(other, _Object):
            self._solution.broken = "it compares two objects of the solution, whose own __eq__ would decide"
        self._refuse()


def _exactly(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"the solution gave {type(value).__name__}, not {kind.__name__}")
    return value
