"""What ends a completion, the same for every engine: end tokens, stop strings, and a limit.

The token that ends a completion stays, with its log-probability, and so does the text that it has behind a stop string:
token ids and log-probabilities are one to one, and the update trains on the tokens that were drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers.decoders import DecodeStream

from pipeline.errors import BadInput
from pipeline.params import SamplingParams
from pipeline.sampling import FinishReason


@dataclass(frozen=True)
class Stops:
    """A completion ends at the first token that is an end token, completes a stop string, or is number `max_tokens`.

    A stop string may span tokens, and counts as text does: special tokens have none, and a character of several bytes
    is there with its last one.

    None of that ends one of fewer than `min_tokens` tokens, nor does a stop string that was complete by then: so far
    the logits of the end tokens are -inf, before the softmax, and log-probabilities are those of the other tokens. The
    trainer leaves the same tokens out at these places, see `row_statistics`.
    """

    end_token_ids: frozenset[int]
    strings: tuple[str, ...]
    min_tokens: int
    max_tokens: int


def make_stops(params: SamplingParams, end_token_ids: Iterable[int]) -> Stops:
    """What ends a completion under `params`, of a model with these end tokens."""
    return Stops(
        end_token_ids=frozenset(end_token_ids) | frozenset(params.stop_token_ids),
        strings=tuple(params.stop),
        min_tokens=params.min_completion_tokens,
        max_tokens=params.max_completion_tokens,
    )


class StopWatch:
    """Sees the tokens of one completion as they are drawn, and says with which of them it ends.

    Args:
        stops: what ends it.
        tokenizer: gives the tokens their text; needed for stop strings alone.
        prompt_token_ids: what the completion's text goes on from (a word's leading space depends on it).
    """

    def __init__(self, stops: Stops, tokenizer: Any = None, prompt_token_ids: Sequence[int] = ()) -> None:
        self.stops = stops
        self.n_tokens = 0
        self._text = _Text(tokenizer, prompt_token_ids, stops.strings) if stops.strings else None

    @property
    def may_end(self) -> bool:
        """Whether the next token may be an end token."""
        return self.n_tokens >= self.stops.min_tokens

    def push(self, token_id: int) -> FinishReason | None:
        """How the completion ends with this token, if it does."""
        is_end = token_id in self.stops.end_token_ids
        if self._text is not None:
            is_end |= self._text.completes(token_id)
        is_end &= self.may_end
        self.n_tokens += 1
        if is_end:
            return "stop"
        return "length" if self.n_tokens == self.stops.max_tokens else None


class _Text:
    """The end of a completion's text, as far as a stop string may begin in it."""

    def __init__(self, tokenizer: Any, prompt_token_ids: Sequence[int], strings: tuple[str, ...]) -> None:
        self._backend = backend_of(tokenizer)
        self._stream = DecodeStream(ids=list(prompt_token_ids), skip_special_tokens=True)
        self._strings = strings
        self._n_kept = max(map(len, strings)) - 1
        self._kept = ""

    def completes(self, token_id: int) -> bool:
        """Whether a stop string ends in the text that this token adds."""
        text = self._kept + (self._stream.step(self._backend, token_id) or "")
        n_before = len(self._kept)
        self._kept = text[max(0, len(text) - self._n_kept) :]
        return any(string in text[max(0, n_before - len(string) + 1) :] for string in self._strings)


def backend_of(tokenizer: Any) -> Any:
    """The tokenizer of the library tokenizers behind one of transformers."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        problem = f"a {type(tokenizer).__name__} has no text while tokens are drawn"
        raise BadInput("params.yaml: sampling.stop", problem, "Leave it out, and give sampling.stop_token_ids")
    return backend
