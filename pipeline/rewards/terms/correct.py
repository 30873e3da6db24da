"""The term `correct`: 1 where the verifier calls the completion correct, else 0."""

from __future__ import annotations

from pipeline.params import Section
from pipeline.rewards.completion import Completion

NEEDS_VERDICT = True


class Params(Section):
    """With `partial_credit`, the verifier's own score in 0 to 1 stands in for 0 or 1."""

    partial_credit: bool = False


def score(completion: Completion, params: Params) -> float | None:
    """1 or 0, or the partial score; None where the verifier can't judge."""
    if params.partial_credit or completion.is_correct is None:
        return completion.partial_score
    return float(completion.is_correct)
