r"""The exact rational value of an answer such as ``\frac{1}{2^{99}}``, ``1,000.50``, ``1\frac12`` or ``50\%``.

Floating point would call 1/2^99 and 1/2^98 equal. Arithmetic here is bounded instead: what would grow beyond
`MAX_BITS`, such as a tower of powers, has no value here, and neither has what is no plain rational number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from pipeline.rewards.verifiers.notation import MAX_NESTING, plain_latex
from pipeline.rewards.verifiers.units import read_unit

MAX_BITS = 1 << 17
"""Numerator and denominator together: about 39,000 decimal digits."""

_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_VARIABLE = re.compile(r"([a-zA-Z](?:_\{?\w+\}?)?) ?= ?(?=[^=]+$)")
_VARIABLE_LAST = re.compile(r"(?<=[\d}]) ?= ?([a-zA-Z](?:_\{?\w+\}?)?)$")
_THOUSANDS = re.compile(r"(?<![\d.,(])\d{1,3}(?:[, ]\d{3})+(?![\d,)])")  # but (1,234) is a pair
_MODULUS = re.compile(r" ?\\pmod ?\{? ?(\w+) ?\}?$")
_PERCENT = re.compile(r" ?(?:%|\\text ?\{ ?(?:%|percent) ?\}|\bpercent)$", re.IGNORECASE)
_SCALE = re.compile(rf" ?(?:\\text ?\{{ ?)?\b({'|'.join(_SCALES)})\b[a-zA-Z }}]*$", re.IGNORECASE)
_NO_UNIT = "and|or|mod|sin|cos|tan|log|exp|min|max|gcd|lcm|det|inf"
_UNIT = re.compile(
    r"(?: ?\\(?:text|mathrm|textrm|mbox|operatorname) ?\{[^{}\d]*\}"  # \text{cm}
    r"|(?<=[\d}]) ?(?:[cmk]m|[km]g|ml|ft|lb|oz|hr|in|mi|mph|(?:[ck]?m|mi|ft)/(?:s|min|hr?))"
    rf"|(?<=[\d}}])(?: (?!(?:{_NO_UNIT})\b)[a-zA-Z]{{3,}})+"  # square meters
    r")(?: ?\^ ?\{?\d\}?)?$"
    r"| ?\^ ?(?:\\circ|\{ ?\\circ ?\}) ?[CF]?$"
)
_TOKEN = re.compile(
    r" *(?:(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<repeating>\\overline ?\{ ?\d+ ?\})|(?P<sign>\\frac|\\cdot|\\times|\\div|\*\*|[-+*/^(){}]))",
    re.ASCII,
)


@dataclass(frozen=True)
class ExactNumber:
    """A rational number as an answer states it: `50%` is 1/2 as a percentage, and `x = 5` is 5 for `x`.

    `modulus` is the one that is stated after the number, and `unit` that of measure where it is a known one.
    """

    value: Fraction
    is_percent: bool = False
    variable: str | None = None
    modulus: str | None = None
    unit: str | None = None


class _UndecidedError(Exception):
    """The text is no plain rational number, or too large a one."""


@lru_cache(maxsize=1 << 16)
def exact_number(text: str) -> ExactNumber | None:
    r"""The exact value of `text`, units dropped, or None where it has none here.

    >>> exact_number(r"x = 1{,}000.5\,\text{cm}")
    ExactNumber(value=Fraction(2001, 2), is_percent=False, variable='x', modulus=None, unit='cm')
    >>> exact_number(r"2003^{2002^{2001}}") is None
    True
    """
    text = plain_latex(text)
    text, variable = _without_variable(text)
    modulus = _MODULUS.search(text)
    if modulus:
        text = text[: modulus.start()]
    text, n_percents = _PERCENT.subn("", text.strip())
    scale, unit = 1, None
    if not n_percents:
        text, scale, unit = _without_unit(text)
    try:
        value = _Parser(_THOUSANDS.sub(lambda match: re.sub(r"[, ]", "", match[0]), text)).value()
        value = value / 100 if n_percents else value * scale
    except (_UndecidedError, ZeroDivisionError):
        return None
    return ExactNumber(value, bool(n_percents), variable, modulus[1] if modulus else None, unit)


def _without_variable(text: str) -> tuple[str, str | None]:
    """`text` without the variable that it is the value of, and that variable."""
    first, last = _VARIABLE.match(text), _VARIABLE_LAST.search(text)
    if first:
        return text[first.end() :], first[1]
    return (text[: last.start()], last[1]) if last else (text, None)


def _without_unit(text: str) -> tuple[str, int, str | None]:
    """`text` without its unit, the scale that a word such as `million` before the unit gives, and a known unit."""
    scale = _SCALE.search(text)
    if scale:
        return text[: scale.start()], _SCALES[scale[1].lower()], None
    unit = _UNIT.search(text)
    return (text[: unit.start()], 1, read_unit(unit[0])) if unit else (text, 1, None)


def are_equal(reference: ExactNumber, answer: ExactNumber) -> bool:
    """Whether `answer` states the value of `reference`.

    A percent sign counts: 50% is 0.5, and not 50. A reference that is a percentage also takes the bare number, 50,
    since its question asked for percent. Of units that are known the two may not have different ones.
    """
    if reference.variable and answer.variable and reference.variable != answer.variable:
        return False
    if reference.modulus and answer.modulus and reference.modulus != answer.modulus:
        return False
    if reference.unit and answer.unit and reference.unit != answer.unit:
        return False
    if reference.is_percent and not answer.is_percent and reference.value * 100 == answer.value:
        return True
    return reference.value == answer.value


class _Parser:
    """Recursive descent over sums, products, powers, fractions and mixed numbers."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._position = 0
        self._depth = 0

    def value(self) -> Fraction:
        value = self._sum()
        if self._peek() is not None:
            raise _UndecidedError
        return value

    def _peek(self, ahead: int = 0) -> str | Fraction | None:
        position = self._position + ahead
        return self._tokens[position] if position < len(self._tokens) else None

    def _take(self, *signs: str) -> str | None:
        token = self._peek()
        if isinstance(token, str) and token in signs:
            self._position += 1
            return token
        return None

    def _sum(self) -> Fraction:
        value = self._product()
        while sign := self._take("+", "-"):
            value = _bounded(value + self._product() * (1 if sign == "+" else -1))
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while sign := self._take("*", "/"):
            factor = self._signed()
            value = _bounded(value * factor if sign == "*" else value / factor)
        return value

    def _signed(self) -> Fraction:
        factor = 1
        while sign := self._take("+", "-"):
            factor *= 1 if sign == "+" else -1
        return factor * self._power()

    def _power(self) -> Fraction:
        base = self._mixed()
        if not self._take("^"):
            return base
        self._enter()
        exponent = self._signed()
        self._depth -= 1
        size = max(base.numerator.bit_length(), base.denominator.bit_length())
        if exponent.denominator != 1 or abs(exponent) * size > MAX_BITS:
            raise _UndecidedError
        return Fraction(base ** int(exponent))

    def _mixed(self) -> Fraction:
        r"""A primary, or a mixed number: ``1\frac{1}{2}`` or ``1 1/2``."""
        first = self._peek()
        value = self._primary()
        if not isinstance(first, Fraction) or first.denominator != 1:
            return value
        if self._peek() == r"\frac":
            part = self._primary()
        elif isinstance(self._peek(), Fraction) and self._peek(1) == "/" and isinstance(self._peek(2), Fraction):
            part = self._primary()
            self._take("/")
            part /= self._primary()
        else:
            return value
        if not 0 < part < 1:
            raise _UndecidedError
        return value + part

    def _primary(self) -> Fraction:
        token = self._peek()
        if isinstance(token, Fraction):
            self._position += 1
            return token
        if self._take(r"\frac"):
            return _bounded(self._group("{", "}") / self._group("{", "}"))
        return self._group("(", ")") if token == "(" else self._group("{", "}")

    def _group(self, opening: str, closing: str) -> Fraction:
        if not self._take(opening):
            raise _UndecidedError
        self._enter()
        value = self._sum()
        self._depth -= 1
        if not self._take(closing):
            raise _UndecidedError
        return value

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise _UndecidedError


_SAME_SIGN = {r"\cdot": "*", r"\times": "*", r"\div": "/", "**": "^"}


def _tokens(text: str) -> list[str | Fraction]:
    tokens: list[str | Fraction] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _UndecidedError
        position = match.end()
        if match["number"]:
            tokens.append(_decimal(match["number"]))
        elif match["repeating"]:
            tokens[-1:] = [_repeating(text[: match.start()], match["repeating"])]
        else:
            tokens.append(_SAME_SIGN.get(match["sign"], match["sign"]))
    return tokens


def _decimal(text: str) -> Fraction:
    mantissa, _, exponent = text.lower().partition("e")
    # Fraction would build any power of ten, and Python refuses to read more than 4,300 digits.
    if len(mantissa) > 4_000 or (exponent and abs(int(exponent)) > MAX_BITS // 4):
        raise _UndecidedError
    return _bounded(Fraction(text))


def _repeating(before: str, bar: str) -> Fraction:
    r"""``0.1\overline{6}`` = (16 - 1) / 90."""
    written = re.search(r"(\d+)\.(\d*)$", before.rstrip())
    digits = re.sub(r"\D", "", bar)
    if written is None or len(written[0]) + len(digits) > 4_000:
        raise _UndecidedError
    once = int(written[1] + written[2])
    nines = (10 ** len(digits) - 1) * 10 ** len(written[2])
    return Fraction(int(f"{once}{digits}") - once, nines)


def _bounded(value: Fraction) -> Fraction:
    if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
        raise _UndecidedError
    return value
