"""Values in their JSON form: there and back, types kept, bounds held, and comparison that nothing fools."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, deque
from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.rewards.code.comparison import equal_outputs, equal_values
from pipeline.rewards.code.inside.values import MAX_DEPTH, NotPlainError, TooLargeError, decode, encode

ATOMS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.complex_numbers(allow_nan=False),
    st.text(), st.binary(),
)  # fmt: skip
HASHABLE = st.recursive(
    ATOMS, lambda inner: st.one_of(st.tuples(inner, inner), st.frozensets(inner, max_size=3)), max_leaves=3
)
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner), st.sets(HASHABLE, max_size=3),
        st.dictionaries(HASHABLE, inner, max_size=3),
    ),
    max_leaves=10,
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(VALUES)
def test_a_value_comes_back_as_it_went(value: Any) -> None:
    form = json.loads(json.dumps(encode(value)))
    back = decode(form)
    assert back == value
    assert type(back) is type(value)
    assert equal_values(encode(value), form)


@pytest.mark.parametrize(
    ("expected", "given_value"),
    [
        (1, True),
        (1, 1.0),
        (True, 1),
        (0, False),
        (None, False),
        ("1", 1),
        ("a", b"a"),
        ([1], (1,)),
        ([1, 2], [1]),
        ({1: "a"}, {True: "a"}),
        ({1: "a"}, {1.0: "a"}),
        ({1}, {1.0}),
        ({1}, frozenset({1})),
        ({}, []),
        (1.0, 1.0 + 2**-52),
    ],
)
def test_types_and_every_bit_count(expected: Any, given_value: Any) -> None:
    assert not equal_values(encode(expected), encode(given_value))


def test_order_counts_where_it_should() -> None:
    assert equal_values(encode({1, 10, 9, "a"}), encode({"a", 9, 10, 1}))
    assert equal_values(encode({"b": 1, "a": 2}), encode({"a": 2, "b": 1}))
    assert not equal_values(encode([1, 2]), encode([2, 1]))
    assert equal_values(encode(float("nan")), encode(float("nan")))
    assert equal_values(encode(0.0), encode(-0.0))


@pytest.mark.parametrize(
    ("subclass", "base"),
    [
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (HTTPStatus.OK, 200),
        (type("Text", (str,), {"__str__": lambda _: "other"})("x"), "x"),
        (type("Items", (list,), {"__iter__": lambda _: iter("ab")})([1]), [1]),
    ],
)
def test_an_instance_of_a_subclass_is_what_its_base_holds(subclass: Any, base: Any) -> None:
    assert encode(subclass) == encode(base)


def test_what_is_no_value_or_too_large_is_refused() -> None:
    deep: Any = 0
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    for large in (deep, [0] * 200_000):
        with pytest.raises(TooLargeError):
            encode(large)
    for other in (object(), deque([1]), [len], {"a": range(3)}):
        with pytest.raises(NotPlainError):
            encode(other)


@pytest.mark.parametrize(
    "form",
    [1, 1.5, {}, {"int": 1}, {"int": "x"}, {"int": "1", "float": "1"}, {"other": []}, {"dict": [[1]]}, {"object": 0}],
)
def test_what_is_no_form_of_a_value_is_refused(form: Any) -> None:
    with pytest.raises(ValueError, match=r"form|kind|invalid|dictionary"):
        decode(form)


@pytest.mark.parametrize(
    "form", [1, 0, 1.0, "0x1", {"int": 1}, {"int": ["0x1"]}, {"int": "0x01"}, [{"int": "0x1"}], {}]
)
def test_what_a_forger_sends_is_not_equal(form: Any) -> None:
    assert not equal_values(encode(1), form)
    assert not equal_values(encode(True), form)
    assert not equal_values(encode(1.0), form, tolerance=0.5)


@pytest.mark.parametrize(
    ("expected", "written", "compare", "is_equal"),
    [
        ("1\n2\n", "1\r\n2  \n\n", "lines", True),
        ("1\n2\n", "1\n\n2\n", "lines", False),
        ("1 2", "1  2", "lines", False),
        ("1\n", "1", "exact", False),
        ("", "\n\n", "lines", True),
        ("1", " 1", "lines", False),
        ("9", "\udcff9", "lines", False),
    ],
)
def test_outputs(expected: str, written: str, compare: str, is_equal: bool) -> None:
    assert equal_outputs(expected, written, compare) is is_equal


@pytest.mark.parametrize(
    ("expected", "written", "is_equal"),
    [
        ("0.5 yes", "0.5000001 yes", True),
        ("0.5", "0.51", False),
        ("1000000", "1000000.5", True),  # 0.5 is less than 1e-6 * 1000000 = 1
        ("1", "nan", False),
        ("1", "inf", False),
        ("inf", "inf", True),
        ("1 2", "1", False),
        ("yes", "1", False),
    ],
)
def test_outputs_with_a_tolerance(expected: str, written: str, is_equal: bool) -> None:
    assert equal_outputs(expected, written, "lines", tolerance=1e-6) is is_equal
