"""The verifier reasoning_gym: each answer by the scorer of the prompt's own task."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from pipeline.params import ScoreParams
from pipeline.rewards.scoring import score_completions
from tests.rewards.frames import CORRECT, prompts, rollouts


def entry(task: str = "chain_sum", answer: str | None = "3", config: Any = None, **metadata: Any) -> str:
    content = {"question": "?", "answer": answer, "metadata": metadata}
    return json.dumps({"task": task, "config": config or {}, "entry": content})


def score(texts: list[str], metadata: Sequence[str | None], **params: Any) -> list[dict[str, Any]]:
    settings = ScoreParams.model_validate({"terms": CORRECT, **params})
    asked = prompts([None] * len(texts), "reasoning_gym", list(metadata))
    return score_completions(rollouts(texts), asked, settings).to_dicts()


def test_correct_means_a_score_of_1() -> None:
    texts = ["3", " 3\n", "3.0", "+03", "13", "it is 3", "4", ""]
    rows = score(texts, [entry()] * len(texts))
    assert [row["is_correct"] for row in rows] == [True, True, True, True, False, False, False, False]
    assert [row["reward"] for row in rows] == [1.0] * 4 + [0.0] * 4
    assert [row["score_error"] for row in rows] == [None] * 8
    assert [row["extracted_answer"] for row in rows[:2]] == ["3", "3"]


def test_partial_credit_is_the_tasks_own() -> None:
    # reasoning-gym gives len("3") / len(answer) to an answer that holds the right one: "13" has 1 of 2 characters
    rows = score(["13", "3"], [entry()] * 2, terms={"correct": {"weight": 2.0, "params": {"partial_credit": True}}})
    assert [(row["is_correct"], row["reward_correct"], row["reward"]) for row in rows] == [
        (False, 0.5, 1.0),
        (True, 1.0, 2.0),
    ]


def test_extraction_chooses_what_is_scored() -> None:
    texts = ["<answer>3</answer>", "3", r"\boxed{3}", "it is 3."]
    for extract, right in (("answer_tag", 0), ("whole", 1), ("boxed", 2)):
        rows = score(texts, [entry()] * 4, reasoning_gym={"extract": extract})
        assert [i for i, row in enumerate(rows) if row["is_correct"]] == [right], extract
    rows = score(texts, [entry()] * 4, reasoning_gym={"extract": "last_number"})
    assert all(row["is_correct"] for row in rows)


def test_an_answer_that_its_scorer_cannot_read_is_wrong() -> None:
    (row, right) = score(["2 x q", "2 × 3"], [entry("prime_factorization", "2 × 3", number=6)] * 2)
    assert (row["is_correct"], row["reward"]) == (False, 0.0)
    assert row["score_error"].startswith("the task's scorer raised on this answer: ValueError: ")
    assert (right["is_correct"], right["score_error"]) == (True, None)


def test_prompts_that_cannot_be_scored_are_data_errors() -> None:
    board = [[1, 2], [3, 4]]
    broken = {
        None: "metadata: it is null",
        "{": "metadata: it is no entry of a reasoning_gym task (JSONDecodeError",
        "[]": "metadata: it is no entry of a reasoning_gym task (TypeError",
        entry("chain_summ"): "metadata: it is no entry of a reasoning_gym task (KeyError: 'chain_summ')",
        entry(config={"terms": 2}): "metadata: it is no entry of a reasoning_gym task (TypeError",
        # its scorer compares tuples, which JSON makes lists of
        entry("rearc", "1 2\n3 4", output=board): "metadata: the prompt's own answer scores 0.05, not 1",
        # its scorer takes any text for "False"
        entry("game_of_life_halting", "False"): "metadata: the task's scorer calls any answer correct",
    }
    rows = score(["3"] * (len(broken) + 1), [*broken, entry()], reasoning_gym={"time_limit_seconds": 20.0})
    for row, reason in zip(rows, broken.values(), strict=False):
        assert row["score_error"].startswith(reason), row
        assert (row["is_correct"], row["reward"]) == (None, None)
    assert rows[-1]["is_correct"] is True


def test_a_prompt_that_cannot_be_scored_gives_no_reward_whatever_the_completion_says() -> None:
    texts = ["no number", "it is 5", ""]
    rows = score(texts, ["{"] * 3, reasoning_gym={"extract": "last_number"})
    assert [(row["is_correct"], row["reward"]) for row in rows] == [(None, None)] * 3
    assert {row["score_error"][:55] for row in rows} == {"metadata: it is no entry of a reasoning_gym task (JSOND"}
    rows = score(texts, [entry()] * 3, reasoning_gym={"extract": "last_number"})
    assert [(row["is_correct"], row["reward"], row["score_error"]) for row in rows] == [(False, 0.0, None)] * 3


def test_a_prompt_without_an_answer_is_scored_by_its_metadata() -> None:
    puzzle = {"vertices": [0, 1], "edges": [[0, 1]], "num_colors": 2, "color_options": [1, 2]}
    rows = score(['{"0": 1, "1": 2}', '{"0": 1, "1": 1}', "?"], [entry("graph_color", None, puzzle=puzzle)] * 3)
    assert [row["is_correct"] for row in rows] == [True, False, False]


LONE_IMPORT = """
import json, sys
from pipeline.rewards.verifiers.reasoning_gym_scorer import check_reference, import_task
entry = {"question": "?", "answer": "3", "metadata": {}}
assert check_reference(json.dumps({"task": "chain_sum", "config": {}, "entry": entry})) is None
assert not {"reasoning_gym.games", "matplotlib", "sympy"} & set(sys.modules)
# a task that is no module of its own name needs them all, and finds those that are there already
assert import_task("syllogism")[0].__name__ == "SyllogismDataset"
assert import_task("chain_sum")[0].__name__ == "ChainSumDataset"
"""


def test_a_task_is_imported_without_the_others() -> None:
    done = subprocess.run([sys.executable, "-c", LONE_IMPORT], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
