"""The verifier math: the handed cases, others like them, and answers that break what tries to read them."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.params import MathParams
from pipeline.rewards.completion import Verdict
from pipeline.rewards.verifier import Prompt, Question
from pipeline.rewards.verifiers.math import MathVerifier, reference_in
from tests.rewards.frames import score

HANDED: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "golden/answers.json").read_text("utf-8"))

# Reference, what the box holds, verdict.
PAIRS: list[tuple[str, str, bool]] = [
    # signs, white space, dressing
    ("-3", r"\,-3\;", True),
    ("-3", "−3", True),
    ("3", "+3", True),
    ("5", "$5$", True),
    ("5", "**5**", True),
    ("5", r"\left( 5 \right)", True),
    # fractions, decimals, mixed numbers, powers
    (r"\frac{1}{2}", "1/2", True),
    (r"\frac12", ".5", True),
    (r"\frac{1}{3}", "0.333333", False),  # near is not equal
    (r"1\frac{1}{2}", "1.5", True),
    (r"1\frac{1}{2}", r"\frac{1}{2}", False),
    ("1.5e3", r"1.5 \times 10^3", True),
    ("1500", "1.5e4", False),
    ("2^{100}", "2^{100}+1", False),
    ("10^{-5000}", "10^{-5001}", False),
    ("1000000000000000000001", "1000000000000000000000", False),
    (r"\frac13", r"0.\overline{3}", True),
    # thousands separators
    ("1000000", "1,000,000", True),
    ("12345", r"12\,345", True),
    ("1234", "(1,234)", False),
    # percent, units, scales
    ("50", r"50\%", False),
    ("0.5", r"50\%", True),
    (r"50\%", r"50\%", True),
    (r"50\%", "50", True),
    (r"50\%", "5", False),
    ("42", "42 apples", True),
    ("12", r"12\text{ apples and } 3 \text{ pears}", False),
    ("12", r"12\text{ cm}^2\text{ of paper}", True),
    ("60", "60 km/h", True),
    ("60", r"60\text{ km/h}", True),
    ("9.8", "9.8 m/s^2", True),
    ("18.9", r"\$18.90", True),
    ("90", r"90^\circ", True),
    ("5", r"5\text{ million}", False),
    ("5000000", "5 million", True),
    # roots, algebra
    (r"\sqrt{17}", r"\sqrt{17}", True),
    (r"\sqrt{17}", "√17", True),
    (r"\sqrt{17}", "sqrt(17)", True),
    (r"\sqrt{17}", r"-\sqrt{17}", False),
    (r"2\sqrt{3}", "3.4641016", True),  # math-verify takes a decimal for what is irrational
    (r"2\sqrt{3}", "3.465", False),
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}", True),
    (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5+2\sqrt{6}}", True),
    (r"\frac{\sqrt{2}}{2^{99}}", r"\frac{\sqrt{2}}{2^{98}}", False),
    (r"\frac{\pi}{3}", r"\frac13\pi", True),
    (r"2\pi", "2 pi", True),
    (r"2\pi", "2π", True),
    (r"x^2-1", "(x-1)(x+1)", True),
    (r"(x+1)^2", "x^2+2x+2", False),
    (r"\frac{a}{b}", r"\frac{b}{a}", False),
    (r"\log_2 8", "3", True),
    ("x^2", "x²", True),
    ("x^{12}", "x¹²", True),
    ("x2", "x²", False),
    (r"\frac{x}{2}", "½x", True),
    (r"\frac{\pi}{2}", "π⁄2", True),
    (r"\sqrt{2}", r"\text{The answer is } \sqrt{2}", True),
    (r"\sqrt{2}", r"\approx \sqrt{2}", True),
    ("3", r"3\pmod{7}", True),
    (r"3\pmod{7}", r"3\pmod{5}", False),
    ("120", "5!", True),
    # equations and inequalities
    ("x=5", "5", True),
    ("x=5", "y=5", False),
    ("y=2x+1", "2x-y+1=0", True),
    ("x<3", "3>x", True),
    ("x<3", r"x\le 3", False),
    # sets, intervals, tuples, matrices, several answers
    (r"\{1,2\}", r"\{2, 1\}", True),
    (r"\{1,2\}", r"\{1,2,3\}", False),
    (r"\{1,2\}", "(1,2)", False),
    (r"\emptyset", r"\{\}", True),
    (r"\emptyset", r"\varnothing", True),
    (r"\varnothing", "∅", True),
    (r"(-\infty,3]", r"(-\infty, 3]", True),
    (r"(-\infty,3)", r"(-\infty, 3]", False),
    (r"[1,2]\cup[3,4]", r"[3,4] ∪ [1,2]", True),
    (r"[1,2]\cup[3,4]", r"[1,2]\cup[3,5]", False),
    ("(2,1)", "(1,2)", False),
    ("(2,1)", "(5,3)", False),
    ("(1,2,3)", r"\left(1, 2, 3\right)", True),
    (r"\left(\frac{1}{2},3\right)", "(0.5, 3)", True),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1 & 2 \\ 3 & 4\end{bmatrix}", True),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&5\end{pmatrix}", False),
    (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}", False),
    ("1,2", "2, 1", True),
    ("1,2", "1", False),
    ("1,2", r"x=1 \text{ or } x=2", True),
    (r"\pm 2", "2,-2", True),
    (r"\pm 2", "2", False),
    # words, choices, numerals in a base
    ("Tuesday", r"\text{Tuesday}", True),
    (r"\text{Tuesday}", r"\text{Monday}", False),
    ("yes", "Yes.", True),
    ("dog", "god", False),
    ("no", "on", False),
    ("no", "No", True),
    ("no", r"\text{no}", True),
    ("it", "ti", False),
    ("is", "si", False),
    ("xy", "yx", True),  # a product
    ("(xy)", "(yx)", True),
    ("ab", r"\text{ab}", True),
    (r"\text{no solution}", "No solution", True),
    ("B", r"\text{(B)}", True),
    ("B", r"\text{(C)}", False),
    ("101_2", "101_{2}", True),
    ("101_2", "101_3", False),
    ("101_2", "101₂", True),
    ("1012", "101₂", False),
    # what people write
    ("7", r"\boxed{7}", True),  # a box in a box
    ("16", r"\text{16 square units}", True),
    ("12", r"\text{the answer is }12.", True),
    ("1.000", "1,000", False),
    ("1,000", "1.000", False),
    ("3", "3=x", True),
    ("x=3", "3 = x", True),
    ("y=3", "3 = x", False),
    (r"\pm 3", "x=\\pm 3", True),
    (r"\pm 3", r"3 \text{ or } -3", True),
    (r"\frac14", "25%", True),
    (r"25\%", r"\text{a quarter}", False),
    (r"25\%", r"x\%", False),
    # units that contradict each other, and those that can't be told
    ("5 cm", "5 m^2", False),
    (r"5\text{ cm}", r"5\text{ m}", False),
    (r"5\text{ cm}", r"5\text{ centimeters}", True),
    ("60 miles per hour", "60 mph", True),
    ("60 miles per hour", "60 km/h", False),
    ("16 square feet", r"16\text{ ft}^2", True),
    ("16 square feet", "16 feet", False),
    ("16 square feet", "16", True),
    ("5 apples", "5 fruits", True),
    # inequalities and the intervals that they are
    ("[0,1]", r"0 \le x \le 1", True),
    ("[0,1]", r"0 \le x < 1", False),
    ("[0,1]", r"x \in [0,1]", True),
    (r"(2,\infty)", "x > 2", True),
    (r"(2,\infty)", r"x \ge 2", False),
    (r"(2,\infty)", "2 < x", True),
    (r"1 \le x < 3", "[1,3)", True),
    ("x>2", "(2,3)", False),
    ("x>2", "x>3", False),
    # gibberish
    ("5", r"\}\{", False),
    ("5", "???", False),
    ("5", r"\frac{1}", False),
]


@pytest.fixture(scope="module")
def pair_rows() -> list[dict[str, Any]]:
    texts = [rf"so it is \boxed{{{answer}}}" for _, answer, _ in PAIRS]
    return score(texts, [reference for reference, _, _ in PAIRS])


@pytest.mark.parametrize("index", range(len(PAIRS)), ids=[f"{reference} | {answer}" for reference, answer, _ in PAIRS])
def test_pairs(pair_rows: list[dict[str, Any]], index: int) -> None:
    row = pair_rows[index]
    assert row["score_error"] is None
    assert row["is_correct"] is PAIRS[index][2]
    assert row["reward"] == row["reward_correct"] == float(PAIRS[index][2])


@pytest.mark.parametrize("extract", ["boxed", "final_answer", "last_number"])
def test_handed_cases(extract: str) -> None:
    cases = [case for case in HANDED if case["extract"] == extract]
    rows = score(
        [case["completion"] for case in cases],
        [case["answer"] for case in cases],
        math={"extract": extract, "time_limit_seconds": 1.0},
    )
    for case, row in zip(cases, rows, strict=True):
        assert row["is_correct"] is case["is_correct"], case["name"]
        assert row["reward"] == (None if case["is_correct"] is None else float(case["is_correct"])), case["name"]
        assert (row["score_error"] is None) == (case["name"] not in ("empty_gold", "tower_of_powers")), case["name"]


TOWER = "2003^{2002^{2001}}"


def test_what_hangs_is_killed_in_time_and_the_next_is_scored() -> None:
    started = time.monotonic()
    texts = [r"\boxed{\sqrt{4}}", rf"\boxed{{{TOWER}}}", r"\boxed{\sqrt{9}}", rf"\boxed{{{TOWER}}}", r"\boxed{3}"]
    rows = score(texts, ["2", "7", "3", TOWER, TOWER], math={"time_limit_seconds": 1.0})
    assert time.monotonic() - started < 30
    assert [row["is_correct"] for row in rows] == [True, False, True, None, None]
    assert rows[1]["score_error"] == "timeout: it took more than 1 s"
    for row in rows[3:]:  # the reference hangs by itself, so no completion can be judged
        assert row["reward"] is None
        assert row["score_error"] == "the prompt's reference alone fails: timeout: it took more than 1 s"


def test_ten_hanging_answers_among_a_thousand_cost_their_limits_over_the_workers() -> None:
    n, limit = 1000, 0.5
    hanging = set(range(37, n, 100))
    # Distinct, since equal questions are asked once; of the others, a worker is asked of every eighth.
    texts = [rf"\boxed{{{i % 3}\sqrt{{2}}}}" if i % 8 == 0 else rf"\boxed{{{i % 3}}}" for i in range(n)]
    texts = [rf"\boxed{{2003^{{2002^{{{i}}}}}}}" if i in hanging else text for i, text in enumerate(texts)]
    answers: list[str | None] = [r"1\sqrt{2}" if i % 8 == 0 else "1" for i in range(n)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    rows = score(texts, answers, math={"time_limit_seconds": limit})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert [row["is_correct"] for row in rows] == [i not in hanging and i % 3 == 1 for i in range(n)]
    assert [i for i, row in enumerate(rows) if row["score_error"]] == sorted(hanging)
    # Of computing time, which other work on the machine doesn't lengthen, and which two workers share.
    assert after.ru_utime - before.ru_utime < 10 * limit + 8


def test_references_that_cannot_be_read_are_data_errors() -> None:
    rows = score([r"\boxed{5}"] * 5, ["", None, " $ $ ", r"\frac{1}{", "9" * 1001])
    assert [row["is_correct"] for row in rows] == [None] * 5
    assert [row["reward"] for row in rows] == [None] * 5
    assert rows[0]["score_error"] == "answer: the prompt's is '', so there is nothing to compare with"
    assert rows[1]["score_error"] == "answer: the prompt's is None, so there is nothing to compare with"
    assert rows[3]["score_error"] == r"answer: '\\frac{1}{' can't be read as mathematics"
    assert "score.math.max_answer_characters, 1000" in rows[4]["score_error"]
    assert rows[4]["extracted_answer"] == "5"


def test_a_reference_that_cannot_be_read_is_a_data_error_whatever_the_completion_says() -> None:
    texts = ["no box", r"\boxed{" + "9" * 1001 + "}", r"\boxed{5}"]
    rows = score(texts, [r"\frac{1}{"] * 3)
    assert [(row["is_correct"], row["reward"]) for row in rows] == [(None, None)] * 3
    assert {row["score_error"] for row in rows} == {r"answer: '\\frac{1}{' can't be read as mathematics"}
    (row,) = score(["no box"], [TOWER], math={"time_limit_seconds": 1.0})
    assert (row["is_correct"], row["reward"]) == (None, None)
    assert row["score_error"] == "the prompt's reference alone fails: timeout: it took more than 1 s"


def test_no_answer_is_wrong() -> None:
    rows = score(["no box"] * 3, ["5", "Tuesday", r"\sqrt{2}"])
    assert [(row["is_correct"], row["reward"], row["score_error"]) for row in rows] == [(False, 0.0, None)] * 3


def test_no_answer_to_a_plain_reference_takes_no_worker() -> None:
    verifier = MathVerifier(MathParams())
    judged = [verifier.judge("no box", Prompt("p", (), answer, "math", None)) for answer in ("5", "yes", r"\sqrt{2}")]
    assert [type(each) for each in judged] == [Verdict, Verdict, Question]


def test_answers_too_long_or_too_deep_are_wrong() -> None:
    long, deep = r"\boxed{" + "9" * 1001 + "}", r"\boxed{" + "(" * 60 + "5" + ")" * 60 + "}"
    full_width = deep.replace("(", "\uff08").replace(")", "\uff09")
    rows = score([long, deep, full_width, long, r"\boxed{5}"], ["5", "5", "5", r"\sqrt{2}", "5"])
    assert [row["is_correct"] for row in rows] == [False, False, False, False, True]
    for row in (rows[0], rows[3]):
        assert "longer than score.math.max_answer_characters" in row["score_error"]
    for row in rows[1:3]:
        assert "nested more than 50 deep" in row["score_error"]


def test_reference_may_be_a_worked_solution() -> None:
    assert reference_in("3 + 4 = 7 apples\n#### 1,007") == "1,007"
    assert reference_in(r"so $\boxed{\frac{1}{2}}$ it is") == r"\frac{1}{2}"
    assert reference_in(r"\boxed{") is None


@given(st.text(max_size=80), st.text(max_size=40))
def test_judging_never_raises(text: str, answer: str) -> None:
    prompt = Prompt("p", (), answer, "math", None)
    for extract in ("boxed", "final_answer", "last_number"):
        verifier = MathVerifier(MathParams.model_validate({"extract": extract}))
        for each in (text, rf"\boxed{{{text}}}", f"#### {text}"):
            assert isinstance(verifier.judge(each, prompt), Verdict | Question)
