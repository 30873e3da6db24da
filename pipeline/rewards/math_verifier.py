r"""The verifier `math`: extraction, then exact arithmetic, then math-verify in a worker for the rest.

Deviations from math-verify alone:
1. The last box counts, and where it never closes there is no answer; math-verify reads them all.
2. Rational numbers are compared exactly: 1/2^99 is not 1/2^98, and 0.333333 is not 1/3.
3. 50% is 0.5 and not 50, unless the reference itself is a percentage.
4. Words are compared as words; math-verify reads `dog` as a product of three variables.
5. Numerals in two bases are equal only in the same base; math-verify drops the base.
"""

from __future__ import annotations

import re

from pipeline.params import MathParams
from pipeline.rewards.completion import Verdict
from pipeline.rewards.exact import are_equal, exact_number
from pipeline.rewards.extraction import EXTRACTIONS, boxed, final_answer
from pipeline.rewards.notation import MAX_NESTING, nesting, plain_latex
from pipeline.rewards.verifier import Prompt, Question, right, unjudged, wrong
from pipeline.rewards.workers import Call

_WORKER = "pipeline.rewards.math_equality"
_BASE_NUMERAL = re.compile(r"([0-9A-Fa-f]+) ?_ ?\{? ?(\d+) ?\}?")
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox) ?\{([^{}]*)\}")
_WORDS = re.compile(r"[a-z][a-z' -]*[a-z]")
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
        if answer is None:
            return wrong()
        if excess := self._excess(answer):
            return wrong(answer, f"the completion's answer {excess}")
        is_equal = compare_at_once(reference, answer)
        if is_equal is not None:
            return right(answer) if is_equal else wrong(answer)
        limit = self._params.time_limit_seconds
        call = Call(f"{_WORKER}:compare", (reference, answer), limit)
        check = Call(f"{_WORKER}:check_reference", (reference,), limit)
        return Question(answer, call, check, warm_up=Call(f"{_WORKER}:check_reference", ("1",), limit))

    def _excess(self, answer: str) -> str | None:
        if len(answer) > self._params.max_answer_characters:
            return f"is longer than score.math.max_answer_characters, {self._params.max_answer_characters}"
        return f"has brackets nested more than {MAX_NESTING} deep" if nesting(answer) > MAX_NESTING else None


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
    numerals = _BASE_NUMERAL.fullmatch(plain[0]), _BASE_NUMERAL.fullmatch(plain[1])
    if numerals[0] and numerals[1]:
        return numerals[0].groups() == numerals[1].groups()
    texts = _words(plain[0]), _words(plain[1])
    return texts[0] == texts[1] if texts[0] and texts[1] else None


def _words(text: str) -> str | None:
    """`text` in lower case where it is made of words, and of no mathematics; a single short word may be a product."""
    bare, n_wrapped = _WRAPPED.subn(r"\1", text)
    bare = " ".join(bare.split()).strip("(). ").lower()
    is_long = len(bare) >= 3 or (n_wrapped and bare)
    return bare if is_long and _WORDS.fullmatch(bare) and not _MATHEMATICS.search(bare) else None
