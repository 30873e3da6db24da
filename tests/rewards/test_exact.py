"""Exact values of answers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.rewards.verifiers.exact import ExactNumber, are_equal, exact_number

VALUES: dict[str, Fraction | int | None] = {
    "5": 5,
    "-5": -5,
    "−5": -5,
    "+5": 5,
    "5.": 5,
    "007": 7,
    ".5": Fraction(1, 2),
    "3.14": Fraction(157, 50),
    "1,000": 1000,
    "1{,}000": 1000,
    r"1\,000": 1000,
    r"1,\!000": 1000,
    "1 000 000": 1_000_000,
    "1,234.50": Fraction(2469, 2),
    "1,2": None,  # two answers
    "100, 200": None,
    "(1,234)": None,  # a pair
    r"\{1,234\}": None,
    "3/4": Fraction(3, 4),
    r"\frac34": Fraction(3, 4),
    r"\frac{3}4": Fraction(3, 4),
    r"\frac3{40}": Fraction(3, 40),
    r"-\dfrac{3}{4}": Fraction(-3, 4),
    r"\frac{-3}{4}": Fraction(-3, 4),
    r"\frac{\frac{1}{2}}{3}": Fraction(1, 6),
    r"1\frac{1}{2}": Fraction(3, 2),
    r"-1\frac12": Fraction(-3, 2),
    "1 1/2": Fraction(3, 2),
    r"2\frac{3}{2}": None,  # no mixed number: 3 or 7/2
    "2(3)": None,
    "2 3": None,
    "2^10": 1024,
    "2^{-3}": Fraction(1, 8),
    "-2^2": -4,
    "(-2)^2": 4,
    "2**3": 8,
    "2^3^2": 512,  # 2^(3^2), from the right
    r"\frac{1}{2^{99}}": Fraction(1, 2**99),
    "2003^{2002^{2001}}": None,
    "9^9^9^9": None,
    "2^{0.5}": None,
    "1/0": None,
    "0^{-1}": None,
    "1.5e3": 1500,
    "1e-3": Fraction(1, 1000),
    "1e999999999": None,
    r"1.5 \times 10^{3}": 1500,
    r"1.5\cdot10^3": 1500,
    "1.5 × 10^3": 1500,
    "2+3*4": 14,
    r"6 \div 4": Fraction(3, 2),
    r"0.\overline{3}": Fraction(1, 3),
    r"0.1\overline{6}": Fraction(1, 6),  # (16 - 1) / 90
    r"50\%": Fraction(1, 2),
    "50 percent": Fraction(1, 2),
    r"33\frac{1}{3}\%": Fraction(1, 3),
    r"35\,\text{cm}": 35,
    r"35\text{ cm}^2": 35,
    r"35 \mathrm{m}^{3}": 35,
    "35 cm": 35,
    "5 square meters": 5,
    "42 apples": 42,
    "60 km/h": 60,
    "9.8 m/s^2": Fraction(49, 5),
    "9.8 m/s²": Fraction(49, 5),
    "5 cm": 5,
    "5 m": None,  # five times m, for all we know
    "5 m/n": None,
    "½": Fraction(1, 2),
    "2½": Fraction(5, 2),
    "1⁄2": Fraction(1, 2),
    "10⁻²": Fraction(1, 100),
    "101₂": None,
    "\uff11\uff15": 15,  # full-width digits
    r"3\pmod{7}": 3,
    r"3 \pmod 7": 3,
    r"\approx 3": 3,
    "≈ 3": 3,
    r"\text{The answer is } 5": 5,
    r"\text{Answer: }5": 5,
    r"\text{at most } 5": None,
    r"\$18.90": Fraction(189, 10),
    "€5": 5,
    r"90^\circ": 90,
    "90°": 90,
    "5 million": 5_000_000,
    r"5\text{ million dollars}": 5_000_000,
    "5 or 6": None,
    "5x": None,
    "5 xy": None,
    r"2\pi": None,
    r"\sqrt{4}": None,
    "5!": None,
    "x = 5": 5,
    "f(x) = 5": None,
    r"\left(5\right)": 5,
    "$$5$$": 5,
    r"\(5\)": 5,
    "**5**": 5,
    "(" * 60 + "5" + ")" * 60: None,
    "2^" * 400 + "1": None,
    "": None,
    "no": None,
}


@pytest.mark.parametrize(("text", "value"), VALUES.items())
def test_exact_number(text: str, value: Fraction | int | None) -> None:
    number = exact_number(text)
    assert (number and number.value) == value


def test_percent_counts() -> None:
    half, fifty, percent = (exact_number(text) for text in ("0.5", "50", r"50\%"))
    assert half
    assert fifty
    assert percent
    assert are_equal(half, percent)
    assert not are_equal(fifty, percent)
    assert are_equal(percent, half)
    assert are_equal(percent, fifty)  # the question asked for percent
    assert not are_equal(percent, ExactNumber(Fraction(5)))


def test_variable_counts_where_both_have_one() -> None:
    x, y, bare = (exact_number(text) for text in ("x=5", "y=5", "5"))
    assert x
    assert y
    assert bare
    assert are_equal(x, bare)
    assert are_equal(bare, x)
    assert not are_equal(x, y)


def test_modulus_counts_where_both_have_one() -> None:
    seven, five, bare = (exact_number(text) for text in (r"3\pmod{7}", r"3\pmod{5}", "3"))
    assert seven
    assert five
    assert bare
    assert are_equal(seven, bare)
    assert are_equal(bare, seven)
    assert not are_equal(seven, five)


@given(st.fractions(max_denominator=10**6))
def test_notations_of_a_fraction_agree(value: Fraction) -> None:
    sign, magnitude = ("-" if value < 0 else ""), abs(value)
    n, d = magnitude.numerator, magnitude.denominator
    notations = [f"{sign}{n}/{d}", rf"{sign}\frac{{{n}}}{{{d}}}", f"$ {sign}{n} / {d} $.", rf"x = {sign}{n:,} \div {d}"]
    if n // d and n % d:
        notations.append(rf"{sign}{n // d}\frac{{{n % d}}}{{{d}}}")
    for notation in notations:
        number = exact_number(notation)
        assert number is not None, notation
        assert number.value == value, notation


@given(st.text(alphabet=r"0123456789.,+-*/^(){}\fracdotimes% xe=_", max_size=60))
def test_exact_number_never_raises(text: str) -> None:
    exact_number(text)
