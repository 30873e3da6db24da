"""Calls of a judge: several at a time, no more a minute than allowed, again after what may pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from pipeline.errors import BadInput, TransientError, first_line
from pipeline.rewards.judging.questions import JudgeQuestion

FIRST_PAUSE_SECONDS = 1.0
"""Before the second try; each further pause is twice as long, up to `LONGEST_PAUSE_SECONDS`."""
LONGEST_PAUSE_SECONDS = 60.0

_MAY_PASS = frozenset({408, 409, 425, 429, *range(500, 600)})
_WRONG_SETTINGS = frozenset({401, 403, 404})


@dataclass(frozen=True)
class Limits:
    """How a judge may be called; a question is given up after `n_tries`."""

    concurrency: int
    requests_per_minute: float | None
    timeout_seconds: float
    n_tries: int


@dataclass(frozen=True)
class Failure:
    """Why there is no answer."""

    reason: str


def ask_all(
    questions: Sequence[JudgeQuestion],
    limits: Limits,
    api_key: str | None,
    is_verdict: Callable[[str], bool],
    on_answer: Callable[[JudgeQuestion, str], None],
) -> list[str | Failure]:
    """The text that each of `questions` is answered with, where `is_verdict` accepts it; each is told to `on_answer`.

    Raises:
        TransientError: there is no connection to the address.
        BadInput: the address refuses the key or knows no such model or path.
    """
    pace = _Pace(limits.requests_per_minute)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    lock = threading.Lock()

    def ask(question: JudgeQuestion) -> str | Failure:
        answer = _ask(question, client, limits, pace, is_verdict)
        if isinstance(answer, str):
            with lock:
                on_answer(question, answer)
        return answer

    pool = ThreadPoolExecutor(limits.concurrency)
    with httpx.Client(headers=headers, timeout=limits.timeout_seconds) as client:
        try:
            return list(pool.map(ask, questions))
        finally:
            pool.shutdown(cancel_futures=True)  # what an error leaves unasked


class _Pace:
    """Lets one call after the other go, at even distances."""

    def __init__(self, per_minute: float | None) -> None:
        self._seconds = 60 / per_minute if per_minute else 0.0
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        with self._lock:
            start = max(self._next, time.monotonic())
            self._next = start + self._seconds
        time.sleep(max(0.0, start - time.monotonic()))


def _ask(
    question: JudgeQuestion, client: httpx.Client, limits: Limits, pace: _Pace, is_verdict: Callable[[str], bool]
) -> str | Failure:
    reason, pause = "", FIRST_PAUSE_SECONDS
    is_connected = True
    for number in range(limits.n_tries):
        if number:
            time.sleep(min(pause, LONGEST_PAUSE_SECONDS))
            pause *= 2
        pace.wait()
        try:
            reply = client.post(f"{question.address.rstrip('/')}/chat/completions", json=dict(question.body))
        except httpx.ConnectError as error:
            is_connected, reason = False, first_line(error)
            continue
        except httpx.TransportError as error:  # a time-out is one
            is_connected, reason = True, f"{type(error).__name__}: {first_line(error)}"
            continue
        is_connected = True
        if reply.status_code in _WRONG_SETTINGS:
            remedy = "Check address, model and api_key_variable of the judge in params.yaml"
            raise BadInput(question.address, f"it answers {reply.status_code}: {reply.text[:200]!r}", remedy)
        if reply.status_code in _MAY_PASS:
            reason = f"it answered {reply.status_code}"
            pause = max(pause, _asked_pause(reply))
            continue
        if reply.is_error:
            return Failure(f"it answered {reply.status_code}: {reply.text[:200]!r}")
        text = _text_of(reply)
        if text is not None and is_verdict(text):
            return text
        reason = f"its verdict is malformed: {(reply.text if text is None else text)[:200]!r}"
    if not is_connected:
        problem = f"there is no connection ({reason}), in {limits.n_tries} tries"
        raise TransientError(question.address, problem, "Start the judge's server, or check its address")
    return Failure(f"{reason}, in {limits.n_tries} tries")


def _asked_pause(reply: httpx.Response) -> float:
    """The seconds that the server asks to wait."""
    try:
        return float(reply.headers.get("Retry-After", 0))
    except ValueError:  # it may be a date
        return 0.0


def _text_of(reply: httpx.Response) -> str | None:
    try:
        text = reply.json()["choices"][0]["message"]["content"]
        text.encode("utf-8")  # JSON can hold half of a surrogate pair, and a table can't
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None
    return str(text)
