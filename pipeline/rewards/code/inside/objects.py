"""Operations on what a solution defines, and on the objects that its functions return, each known by a number."""

from __future__ import annotations

import operator
import types

from .values import NotPlainError, TooLargeError, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda target, *args, **kwargs: target(*args, **kwargs),
    "get": lambda target, name: getattr(target, name),
    "set": lambda target, name, value: setattr(target, name, value),
    "item": operator.getitem,
    "set_item": operator.setitem,
    "contains": operator.contains,
    "list": list,
    "iterate": iter,
    "next": next,
    "length": len,
    "str": str,
    "repr": repr,
}
MAX_MESSAGE_CHARACTERS = 300


class Objects:
    """The module of a solution, and the objects that it handed out."""

    def __init__(self, load: Callable[[], types.ModuleType], keeps_own_classes: bool) -> None:
        """With `keeps_own_classes` an instance of a class of the solution is an object, whatever its base."""
        self._load = load
        self._keeps_own_classes = keeps_own_classes
        self._kept: list[Any] = []
        self._namespace: dict[str, Any] = {}

    def load(self) -> dict[str, Any]:
        """Run the module: an empty reply, or what it raised."""
        return self._reply(self._run_module)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request for an operation.

        A request has `operation`, `target` (a path of names, or the number of an object), and the forms `args` and
        `kwargs`. With `wants_args` the reply has the arguments as the call left them.
        """
        args: list[Any] = []

        def run() -> Any:
            args.extend(decode(request["args"], self._find))
            kwargs = decode(request["kwargs"], self._find)
            return OPERATIONS[request["operation"]](self._find(request["target"]), *args, **kwargs)

        reply = self._reply(run)
        if request.get("wants_args"):
            try:  # noqa: SIM105 - contextlib is slow to import
                reply["args"] = encode(args)
            except (NotPlainError, TooLargeError):
                pass
        return reply

    def _run_module(self) -> None:
        self._namespace = vars(self._load())

    def _find(self, target: int | list[str]) -> Any:
        if isinstance(target, int):
            return self._kept[target]
        if target[0] not in self._namespace:
            raise NameError(f"it does not define {target[0]}")
        found = self._namespace[target[0]]
        for name in target[1:]:
            found = getattr(found() if isinstance(found, type) else found, name)
        return found

    def _reply(self, run: Callable[[], Any]) -> dict[str, Any]:
        try:
            value = run()
            return self._form(value)
        except MemoryError:
            return {"is_out_of_memory": True}
        except TooLargeError:
            return {"is_too_large": True}
        except BaseException as error:  # a solution may raise anything, and a SystemExit ends nothing here
            base = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
            return {"raised": type(error).__name__, "base": base, "message": _message(error)}

    def _form(self, value: Any) -> dict[str, Any]:
        is_own = type(value).__module__ == self._namespace.get("__name__")
        if not (is_own and self._keeps_own_classes):
            try:
                return {"value": encode(value)}
            except NotPlainError:
                pass
        self._kept.append(value)
        return {"object": len(self._kept) - 1, "type": type(value).__name__}


def _message(error: BaseException) -> str:
    try:
        return str(error)[:MAX_MESSAGE_CHARACTERS]
    except BaseException:  # its own __str__ is broken too
        return ""
