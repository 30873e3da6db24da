r"""The verifier `math`: extraction, then exact arithmetic, then math-verify in a worker for the rest.

Deviations from math-verify alone:
1. The last box counts, and where it never closes there is no answer; math-verify reads them all.
2. Rational numbers are compared exactly: 1/2^99 is not 1/2^98, and 0.333333 is not 1/3.
3. 50% is 0.5 and not 50, unless the reference itself is a percentage.
4. Words are compared as words; math-verify reads `dog` as a product of three variables.
5. Numerals in two bases are equal only in the same base; math-verify drops the base.
6. Text is a unit only beside a single number: `12 apples and 3 pears` is not 12.

math-verify alone compares what is irrational, and takes a decimal of six digits or so for it: 3.141593 is pi there.
"""

from __future__ import annotations

import re

from pipeline.params import MathParams
from pipeline.rewards.completion import Verdict
from pipeline.rewards.verifier import Prompt, Question, right, unjudged, wrong
from pipeline.rewards.verifiers.exact import are_equal, exact_number
from pipeline.rewards.verifiers.extraction import EXTRACTIONS, boxed, final_answer
from pipeline.rewards.verifiers.notation import MAX_NESTING, nesting, plain_latex
from pipeline.rewards.workers import Call

_WORKER = "pipeline.rewards.verifiers.math_equality"
_BASE_NUMERAL = re.compile(r"([0-9A-Fa-f]+) ?_ ?\{? ?(\d+) ?\}?")
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox) ?\{([^{}]*)\}")
_WORDS = re.compile(r"[a-z][a-z' -]*[a-z]")
_SHORT_WORDS = frozenset({"go", "he", "if", "in", "is", "it", "my", "no", "of", "on", "so", "to", "up", "us", "we"})
_TEXT = re.compile(r"\\(?:text|mathrm|mbox) ?\{[^{}]*\}(?: ?\^ ?\{?-?\d+\}?)?")
_MATHEMATICS = re.compile(r"\b(?:sin|cos|tan|log|ln|exp|and|or|inf|infinity)\b")


class MathVerifier:
    """Compares the answer found in a completion with the prompt's reference answer."""

    def __init__(self, params: MathParams) -> None:
        self._params = params
        self._extract = EXTRACTIONS[params.extract]

    def judge(self, completion_text: str, prompt: Prompt) -> Verdict | Question:
        """The verdict, or a question for math-verify."""
        answer = self._extract(completion_text)
        reference = reference_in(prompt.answer or "")
        if reference is None:
            return unjudged(answer, f"answer: the prompt's is {prompt.answer!r}, so there is nothing to compare with")
        if excess := self._excess(reference):
            return unjudged(answer, f"answer: the prompt's {excess}")
        excess = None if answer is None else self._excess(answer)
        if answer is None or excess:
            error = f"the completion's answer {excess}" if excess else None
            # A reference that equals itself at once can be read; for any other, a worker finds out.
            is_readable = compare_at_once(reference, reference)
            return wrong(answer, error) if is_readable else self._ask("refuse", reference, answer, error)
        is_equal = compare_at_once(reference, answer)
        if is_equal is None:
            return self._ask("compare", reference, answer, answer)
        return right(answer) if is_equal else wrong(answer)

    def _ask(self, function: str, reference: str, answer: str | None, argument: str | None) -> Question:
        limit = self._params.time_limit_seconds
        call = Call(f"{_WORKER}:{function}", (reference, argument), limit)
        check = Call(f"{_WORKER}:check_reference", (reference,), limit)
        return Question(answer, call, check, warm_up=Call(f"{_WORKER}:check_reference", ("1",), limit))

    def _excess(self, answer: str) -> str | None:
        if len(answer) > self._params.max_answer_characters:
            return f"is longer than score.math.max_answer_characters, {self._params.max_answer_characters}"
        is_too_deep = nesting(plain_latex(answer)) > MAX_NESTING
        return f"has brackets nested more than {MAX_NESTING} deep" if is_too_deep else None


def reference_in(answer: str) -> str | None:
    r"""The reference that `answer` states: its box, what follows its `####`, or all of it; None where that is empty.

    >>> reference_in("2 + 2 = 4, so\n#### 4"), reference_in(r"\frac{1}{2}"), reference_in(" ")
    ('4', '\\frac{1}{2}', None)
    """
    if r"\boxed" in answer or r"\fbox" in answer:
        return boxed(answer)
    return final_answer(answer) if "####" in answer else plain_latex(answer) or None


def compare_at_once(reference: str, answer: str) -> bool | None:
    r"""Whether the two are equal, or None where it takes algebra to tell.

    >>> compare_at_once(r"\frac{1}{2}", "0.5"), compare_at_once("Tuesday", r"\text{Monday}"), compare_at_once("2x", "x")
    (True, False, None)
    """
    numbers = exact_number(reference), exact_number(answer)
    if numbers[0] and numbers[1]:
        return are_equal(numbers[0], numbers[1])
    plain = plain_latex(reference), plain_latex(answer)
    if numbers[0] and _has_several_numbers(plain[1]):
        return False
    numerals = _BASE_NUMERAL.fullmatch(plain[0]), _BASE_NUMERAL.fullmatch(plain[1])
    if numerals[0] and numerals[1]:
        return numerals[0].groups() == numerals[1].groups()
    words = _words(plain[0]), _words(plain[1])
    if not (words[0] and words[1]):
        return None
    are_letters = any(len(word) == 2 and "\\" not in text for word, text in zip(words, plain, strict=True) if word)
    return None if are_letters and _SHORT_WORDS.isdisjoint(words) else words[0] == words[1]


def _has_several_numbers(text: str) -> bool:
    r"""Whether text stands between numbers of `text`, as in ``12\text{ apples and }3``."""
    return sum(bool(re.search(r"\d", part)) for part in _TEXT.split(text)) > 1


def _words(text: str) -> str | None:
    """`text` in lower case where it is made of words, and of no mathematics."""
    bare = _WRAPPED.sub(r"\1", text)
    bare = " ".join(bare.split()).strip("(). ").lower()
    return bare if _WORDS.fullmatch(bare) and not _MATHEMATICS.search(bare) else None
