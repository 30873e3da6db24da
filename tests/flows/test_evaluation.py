from __future__ import annotations

import pytest

from pipeline.errors import BadInput
from pipeline.versioning.branching import new_run
from prefect_flows.evaluation import evaluate_nightly
from prefect_flows.train import iterate, train
from tests.flows.quick_project import QuickProject

pytestmark = pytest.mark.slow


def test_the_latest_policy_is_evaluated_once_on_a_run_of_its_own(here: QuickProject) -> None:
    train("night", 1, settings=here.seed("night"))
    here.order_trouble("rollout", "bug")  # it must not run again
    with pytest.raises(BadInput, match=r"pass@4 needs n_completions of at least 4"):
        evaluate_nightly("night", n_completions=2, k=[4])
    evaluate_nightly("night", n_completions=4, k=[1, 4])
    assert here.tags("night-nightly") == ["night-nightly/0000"]
    params = here.git("show", "night-nightly/0000:params.yaml")
    assert "n_prompts: 512" in params  # all of prompts.eval_size
    assert "n_completions: 4" in params

    tip = here.git("rev-parse", "runs/night-nightly")
    evaluate_nightly("night", n_completions=4, k=[1, 4])
    assert here.git("rev-parse", "runs/night-nightly") == tip  # nothing to do

    here.clear_trouble()
    iterate("night")
    evaluate_nightly("night", n_completions=4, k=[1, 4])
    assert here.tags("night-nightly") == ["night-nightly/0000", "night-nightly/0001"]
    line = here.git("log", "--first-parent", "--format=%D", "runs/night-nightly")
    assert "night-nightly/0001" in line
    assert "night/0001" in line
    assert "night-nightly/0000" not in line  # the branch has moved along; the tag keeps what it found
    assert here.git("rev-parse", "runs/night") == here.git("rev-parse", "night/0001")


def test_without_an_iteration_there_is_nothing_to_evaluate(here: QuickProject) -> None:
    new_run(here.repository, "empty")
    with pytest.raises(BadInput, match="run empty: it has no iteration yet"):
        evaluate_nightly("empty")
    with pytest.raises(BadInput, match="run missing: there is no branch runs/missing"):
        evaluate_nightly("missing")
