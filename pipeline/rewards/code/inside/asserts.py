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
    namespace |= {name: _Remote(solution, [name]) for name in channel.task["names"]}
    try:
        exec(compiled, namespace)
    except BaseException as error:  # whatever a test raises, it did not pass
        if solution.refused:
            return {"broken": f"it hands the solution a {solution.refused}, which can't get from sandbox to sandbox"}
        return {"has_passed": False, "message": f"{type(error).__name__}: {error}"[:MAX_MESSAGE_CHARACTERS]}
    if not solution.n_requests:
        return {"broken": "it passes without a call of the solution"}
    return {"has_passed": True, "message": ""}


class _Solution:
    """The solution in its sandbox, through the scorer."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.n_requests = 0
        self.refused = ""
        self._has_given_objects = False

    def do(self, operation: str, target: int | list[str], *args: Any, **kwargs: Any) -> Any:
        """What `operation` on `target` gives: a plain value, or a stand-in for an object that stays where it is."""
        self.n_requests += 1
        forms = {"args": encode(args, self._stand_in)["tuple"], "kwargs": encode(kwargs, self._stand_in)}
        request = {"operation": operation, "target": target, "wants_args": self._channel.task["in_place"]}
        self._channel.send({"request": {**request, **forms}})
        reply = self._channel.receive()
        if "args" in reply:
            for before, after in zip(args, decode(reply["args"]), strict=True):
                _make_equal(before, after)
        if "raised" in reply:
            if operation == "next" and reply["raised"] == "StopIteration":
                raise StopIteration
            raise _error(reply["raised"], reply["message"])
        if "object" in reply:
            self._has_given_objects = True
            return _Remote(self, reply["object"])
        return decode(reply["value"])

    def _stand_in(self, value: object) -> dict[str, Any]:
        """The form of an object of the solution that a test hands back to it."""
        if isinstance(value, _Remote):
            return {"object": value._Remote__target}
        kind = type(value).__name__
        if not self._has_given_objects:  # whose methods are the solution's, so that the test may not be to blame
            self.refused = kind
        raise TypeError(f"a {kind} can't get to the solution")


def _make_equal(before: Any, after: Any) -> None:
    """Do to a mutable argument what the call did to it."""
    if isinstance(before, list):
        before[:] = after
    elif isinstance(before, dict | set):
        before.clear()
        before.update(after)


def _error(name: str, message: str) -> Exception:
    """The built-in error of that name, which a test may expect.

    A StopIteration would end a loop of the test over `map(function, inputs)` early, and pass it.
    """
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _ENDS_LOOPS):
        try:
            return kind(message)
        except TypeError:  # UnicodeDecodeError takes five arguments
            pass
    return RuntimeError(f"{name}: {message}")


class _Remote:
    """A stand-in for a function, class or object of the solution.

    What it is asked goes to the solution, but for whether it is true or equal to something: nothing but a plain value
    can be that.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, solution: _Solution, target: int | list[str]) -> None:
        self.__solution = solution
        self.__target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__solution.do("call", self.__target, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return self.__solution.do("get", self.__target, name)

    def __getitem__(self, key: Any) -> Any:
        return self.__solution.do("item", self.__target, key)

    def __iter__(self) -> Iterator[Any]:
        items: list[Any] = _exactly(list, self.__solution.do("list", self.__target))
        return iter(items)

    def __next__(self) -> Any:
        return self.__solution.do("next", self.__target)

    def __len__(self) -> int:
        length: int = _exactly(int, self.__solution.do("length", self.__target))
        return length

    def __str__(self) -> str:
        text: str = _exactly(str, self.__solution.do("str", self.__target))
        return text

    def __refuse(self, *_: Any) -> NoReturn:
        raise TypeError("an object of the solution is no plain value, so it is neither true nor equal to anything")

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __refuse


def _exactly(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"the solution gave {type(value).__name__}, not {kind.__name__}")
    return value
