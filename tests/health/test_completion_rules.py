from __future__ import annotations

import polars as pl
import pytest

from pipeline.health.completion_rules import completions_finish, completions_not_empty, completions_not_repetitive
from pipeline.health.evidence import Evidence
from pipeline.params import HealthParams
from tests.health.planted import evidence
from tests.iteration_sample import sample_frames, sample_metrics

LIMITS = HealthParams()


def with_texts(planted: str, n: int, n_all: int = 10) -> Evidence:
    """`n` completions of `n_all` have the `planted` text."""
    texts = [planted] * n + ["The answer is seven."] * (n_all - n)
    rollouts = sample_frames()["rollouts"].head(n_all).with_columns(completion_text=pl.Series(texts))
    return evidence(frames={"rollouts": rollouts})


@pytest.mark.parametrize(("fraction", "level"), [(0.3, "ok"), (0.3125, "warn")])
def test_many_completions_cut_off_warn(fraction: float, level: str) -> None:
    finding = completions_finish(evidence(sample_metrics(rollout={"truncated_fraction": fraction})), LIMITS)
    assert (finding.level, finding.value) == (level, fraction)
    cut_off = sample_frames()["rollouts"].filter(pl.col("finish_reason") == "length")["completion_id"]
    assert finding.rows is not None
    assert finding.rows.ids == (tuple(cut_off.head(5)) if level == "warn" else ())


@pytest.mark.parametrize(("n", "level"), [(1, "ok"), (2, "warn")])
@pytest.mark.parametrize("text", ["", " \n"])
def test_many_completions_without_text_warn(n: int, level: str, text: str) -> None:
    finding = completions_not_empty(with_texts(text, n), LIMITS)
    assert (finding.level, finding.value) == (level, n / 10)
    assert finding.rows is not None
    assert finding.rows.n == (n if level == "warn" else 0)


@pytest.mark.parametrize(("n", "level"), [(2, "ok"), (3, "warn")])
def test_many_completions_that_repeat_themselves_warn(n: int, level: str) -> None:
    finding = completions_not_repetitive(with_texts("So it is four. " * 20, n), LIMITS)
    assert (finding.level, finding.value) == (level, n / 10)
    assert finding.rows is not None
    assert finding.rows.ids == (tuple(f"0000/0000000000000000/{k}" for k in range(3)) if level == "warn" else ())
    assert finding.rows.query == 'rollbook audit repetition --where "compression_ratio > 4"'


def test_prose_does_not_repeat_itself() -> None:
    prose = (
        "First I add the two numbers that stand in the brackets, which gives twelve. Then I multiply by three and get "
        "thirty-six, from which the last term, five, has to be taken away; so the final answer must be thirty-one."
    )
    assert completions_not_repetitive(with_texts(prose, 10), LIMITS).value == 0.0
