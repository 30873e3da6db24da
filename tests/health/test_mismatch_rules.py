from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import polars as pl
import pytest

from pipeline.health.evidence import Evidence
from pipeline.health.mismatch_rules import logprobs_agree, sampling_kl_bounded, weights_effective
from pipeline.params import HealthParams
from tests.health.planted import LIST, evidence, ids
from tests.iteration_sample import sample_frames, sample_metrics

LIMITS = HealthParams()


def with_old_logprobs(per_completion: list[list[float]]) -> dict[str, pl.DataFrame]:
    """Tables in which the sampler gave each of these tokens a log-probability of -1, the trainer the given one."""
    frames = sample_frames()
    n = len(per_completion)
    old = pl.Series(per_completion, dtype=LIST)
    sampled = pl.Series([[-1.0] * len(old) for old in per_completion], dtype=LIST)
    return {
        "training_set": frames["training_set"].head(n).with_columns(sampling_logprobs=sampled),
        "token_logprobs": frames["token_logprobs"].head(n).with_columns(old_logprobs=old),
    }


@pytest.mark.parametrize(
    ("kl", "level", "threshold"),
    [(0.01, "ok", 0.1), (0.0101, "watch", 0.01), (0.1, "watch", 0.01), (0.1001, "warn", 0.1)],
)
def test_the_kl_of_sampler_to_trainer_is_watched_before_it_warns(kl: float, level: str, threshold: float) -> None:
    finding = sampling_kl_bounded(evidence(sample_metrics(update={"sampling_kl": kl})), LIMITS)
    assert (finding.level, finding.value, finding.threshold) == (level, kl, threshold)
    assert ids(finding) == (() if level == "ok" else ("step 3",))  # which has 0.25 in the tables


@pytest.mark.parametrize(("difference", "level"), [(0.097, "ok"), (0.1, "warn")])
def test_the_mean_ratio_of_probabilities_warns_above_its_limit(difference: float, level: str) -> None:
    # Of two tokens one differs: (exp(0) + exp(0.1)) / 2 = 1.0526, and with 0.097 it is 1.0509.
    tables = with_old_logprobs([[-1.0], [-1.0 - difference]])
    finding = logprobs_agree(evidence(frames=tables), LIMITS.model_copy(update={"max_probability_ratio": 1.052}))
    assert finding.value == pytest.approx((1 + math.exp(difference)) / 2, rel=1e-5)
    assert finding.level == level
    worst = "0000/0000000000000000/1"
    assert ids(finding)[:1] == ((worst,) if level == "warn" else ())


def test_the_default_ratio_is_that_of_nemo_rl() -> None:
    assert logprobs_agree(evidence(frames=with_old_logprobs([[-1.0 + math.log(1.0501)]])), LIMITS).level == "warn"
    assert logprobs_agree(evidence(frames=with_old_logprobs([[-1.0 + math.log(1.0499)]])), LIMITS).level == "ok"


@pytest.mark.parametrize(("weight", "level"), [(13.0, "ok"), (20.0, "warn")])
def test_few_effective_tokens_warn(weight: float, level: str) -> None:
    # Weights 1, 1, 1, 1 and w: (4 + w)^2 / (5 (4 + w^2)) is 289 / 865 = 0.334 for 13, and 576 / 2020 = 0.285 for 20.
    tables = with_old_logprobs([[-1.0, -1.0, -1.0, -1.0], [-1.0 + math.log(weight)]])
    finding = weights_effective(evidence(frames=tables), LIMITS)
    assert finding.value == pytest.approx((4 + weight) ** 2 / (5 * (4 + weight**2)), rel=1e-5)
    assert finding.level == level


def test_without_a_trained_token_there_is_nothing_to_judge() -> None:
    empty = {name: frame.clear() for name, frame in with_old_logprobs([]).items()}
    for rule in (logprobs_agree, weights_effective):
        finding = rule(evidence(frames=empty), LIMITS)
        assert (finding.level, finding.value) == ("ok", None)
        assert "no token was trained on" in finding.message


def test_the_order_of_rows_is_no_matter() -> None:
    # As floats, (0.1 + 0.2) + 0.3 is not 0.1 + (0.2 + 0.3).
    values = [0.1, 0.2, 0.3]
    rows = pl.DataFrame({"completion_id": ["a", "b", "c"], "n": 1, "ratio": values, "weight": values, "square": values})
    for rule in (logprobs_agree, weights_effective):
        found = [rule(cast(Evidence, SimpleNamespace(mismatch=each)), LIMITS).value for each in (rows, rows.reverse())]
        assert found[0] == found[1]
