"""Where the answer stands in a completion."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.rewards.verifiers.extraction import EXTRACTIONS, answer_tag, boxed, final_answer, last_number, whole

BOXED = {
    r"\boxed{4}": "4",
    r"\boxed{1} wait, \boxed{4}": "4",
    r"\fbox{7}": "7",
    r"\boxed {7}": "7",
    r"\boxed{\frac{1}{2}}": r"\frac{1}{2}",
    r"\boxed{\boxed{5}}": "5",
    r"\boxed{\{1, 2\}}": r"\{1, 2\}",
    r"\boxed{\text{a \} b}}": r"\text{a \} b}",
    "\\boxed{\n5\n}": "5",
    r"\boxed{a\\}": r"a\\",
    r"\boxed{5} so the answer is \boxed{": None,
    r"\boxed{5} so the answer is \boxed": None,
    r"\boxed{5} and \boxed{\frac{1}{2}": None,
    r"\boxed{}": None,
    r"\boxed{ }": None,
    "5": None,
    "": None,
}

FINAL_ANSWER = {
    "#### 42": "42",
    "#### 42\nThat is how the total is found.": "42",
    "#### 42 That is how the total is found.": "42",
    "#### 1,000": "1,000",
    "#### -3.5": "-3.5",
    "#### $5.50 per hour. And $6 at night.": "$5.50 per hour",
    "#### 1\n#### 2": "2",
    "The final answer is 12.": "12",
    "The answer is 3.5 meters. I hope it is correct.": "3.5 meters",
    "The answer is 42, not 43.": "42",
    "The answer is 1, 2, nothing else": "1, 2, nothing else",
    "The answer to the question is 5.": "5",
    "Final Answer: The final answer is $42$. I hope it is correct.": "42",
    r"The final answer is $\frac12$. I hope it is correct.": r"\frac12",
    "**Answer:** 42": "42",
    "**Answer**: **42**.": "42",
    "Answer = 7": "7",
    "Final answer:\n42\nbecause I counted": "42",
    "the answer is (3,4)": "(3,4)",
    r"the answer is \(5\) units": "5",
    "the answer is\n\\[\n5\n\\]\nas shown": "5",
    r"Answer: \boxed{3} as shown": "3",
    r"Answer: \boxed{3": None,
    "The answer is not clear yet. Answer: 6": "6",
    "Answer: 6. No, my final answer is": None,
    "answer:": None,
    "##### 42": None,
    "The answers: none": None,
    "42": None,
    "": None,
}

LAST_NUMBER = {
    "4 + 8 = 12.": "12",
    "4 - 9 = -5": "-5",
    "5-3": "3",
    "(5)-3": "3",
    "x-3": "3",
    "x = -5": "-5",
    "x=-5,": "-5",
    "2*-3": "-3",
    "5 - -3": "-3",
    "from 10–15": "15",
    "it is −7": "-7",
    "it is -$5": "-5",
    "it is $-5": "-5",
    "- 5": "-5",
    "= - 5": "-5",
    "x = − 5.": "-5",
    "(- 5)": "-5",
    "it is - $5": "-5",
    "9 - 5": "5",
    "x - 5": "5",
    "this - 5": "5",
    "4\n- 5": "5",  # an item of a list
    "$1,234.50": "1,234.50",
    "1,2": "2",
    "12{,}345": "12345",
    "1{,}234{,}567.5": "1234567.5",
    r"\frac{3}{4}": "3/4",
    r"$-\dfrac{3}{4}$": "-3/4",
    r"= - \frac{3}{4}": "-3/4",
    r"1 - \frac{3}{4}": "3/4",
    r"2\frac{3}{4}": "2 3/4",
    r"\frac{3}{4} of 8": "8",
    "1,234,567": "1,234,567",
    "3/4": "3/4",
    "-3/4.": "-3/4",
    "0.25": "0.25",
    "-.5": "-.5",
    "1.5e-3": "1.5e-3",
    "50%": "50",
    "12 cm2": "12",
    "I have two": None,
    "٣": None,
    "": None,
}


@pytest.mark.parametrize(("text", "expected"), BOXED.items())
def test_boxed(text: str, expected: str | None) -> None:
    assert boxed(text) == expected


@pytest.mark.parametrize(("text", "expected"), FINAL_ANSWER.items())
def test_final_answer(text: str, expected: str | None) -> None:
    assert final_answer(text) == expected


@pytest.mark.parametrize(("text", "expected"), LAST_NUMBER.items())
def test_last_number(text: str, expected: str | None) -> None:
    assert last_number(text) == expected


def test_answer_tag_and_whole() -> None:
    assert answer_tag("<answer>1</answer> no <ANSWER>\n2\n</ANSWER> so") == "2"
    assert answer_tag("<answer>1</answer> no <answer>2") is None
    assert answer_tag("<answer></answer>") is None
    assert answer_tag("12") is None
    assert whole(" 1\n2 ") == "1\n2"
    assert whole(" \n") is None


def test_long_tail_hides_nothing_and_costs_little() -> None:
    assert final_answer("#### 42\n" + "That is how. " * 100_000) == "42"
    assert boxed(r"\boxed{" * 50_000) is None
    assert last_number("1," * 100_000) == "1"


pieces = st.lists(
    st.sampled_from(
        [r"\boxed{", r"\fbox", "{", "}", "\\", "####", "answer is", "answer:", "$", "**", "-", "1", ",000", ".", "/"]
    )
    | st.text(max_size=5)
).map("".join)


@given(pieces)
def test_extraction_never_raises_and_finds_what_is_there(text: str) -> None:
    for name, extract in EXTRACTIONS.items():
        answer = extract(text)
        if answer is not None:
            assert answer == answer.strip() != "", name
            assert name == "last_number" or answer in text, name
