"""All questions, by name."""

from __future__ import annotations

from difflib import get_close_matches

from pipeline.audit import groups, progress, rewards, texts, training
from pipeline.audit.question import Question
from pipeline.errors import BadInput

QUESTIONS: dict[str, Question] = {
    question.name: question for module in (rewards, groups, texts, progress, training) for question in module.QUESTIONS
}


def question_named(name: str) -> Question:
    """The question `name`, in which `-` is as good as `_`.

    Raises:
        BadInput: there is none; the message names the nearest.
    """
    known = name.replace("-", "_")
    if known not in QUESTIONS:
        near = get_close_matches(known, QUESTIONS, n=1)
        remedy = f"Did you mean {near[0]}" if near else "`rollbook audit` lists them"
        raise BadInput(f"audit {name}", "there is no such question", remedy)
    return QUESTIONS[known]
