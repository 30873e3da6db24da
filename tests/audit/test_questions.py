"""Each question finds just the rows that were planted for it."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from pipeline.audit.answer import DETAILS, answer
from pipeline.audit.question import Unanswerable
from pipeline.audit.registry import QUESTIONS, question_named
from pipeline.audit.tables import IterationTables, frame_tables
from pipeline.errors import BadInput
from tests.audit.planted import Frames, ask, ids, plant

NAMES = [
    *("highest", "verifiers", "terms", "flips"),
    *("silent", "duplicates", "length", "short"),
    *("unrewarded", "repetition", "scripts", "gold_in_prompt", "several_answers"),
    *("format", "held_out", "prompts"),
    *("truncated", "token_mismatch", "agreement", "steps"),
]

TOKEN_LISTS = ("_token_ids", "_logprobs")
"""How the columns of lists of tokens end."""


def test_the_registry_has_every_question() -> None:
    assert list(QUESTIONS) == NAMES
    assert all(question.asks.endswith("?") and len(question.asks) < 80 for question in QUESTIONS.values())
    assert {name for question in QUESTIONS.values() for name in question.details} <= set(DETAILS)
    assert question_named("held-out").name == "held_out"
    with pytest.raises(BadInput, match=r"audit lenth: there is no such question\. Did you mean length"):
        question_named("lenth")


# Rewards --------------------------------------------------------------------------------------------------------------


def test_highest_are_the_largest_rewards_first_those_that_stand_out_of_their_group() -> None:
    frames = plant(
        [
            {"prompt": "a", "reward": 1.0},
            {"prompt": "a", "reward": 0.0},
            {"prompt": "b", "reward": 1.0, "completion_text": "I win."},
            {"prompt": "b", "reward": 0.0},
            {"prompt": "b", "reward": 0.0},
            {"prompt": "b", "reward": None, "score_error": "too long"},
        ]
    )
    rows = ask("highest", frames)
    # b/0 is 1 - 1/3 above its group, a/0 is 1 - 1/2.
    assert ids(rows) == ["b/0", "a/0", "b/1", "b/2", "a/1"]
    assert rows["reward_above_group"].to_list() == pytest.approx([2 / 3, 1 / 2, -1 / 3, -1 / 3, -1 / 2])
    assert rows.row(0, named=True)["completion_text"] == "I win."
    assert rows.columns[:5] == ["run", "iteration", "prompt_id", "group_id", "completion_id"]


def test_verifiers_that_disagree() -> None:
    frames = plant(
        [
            {"prompt": "a", "reward": 1.0, "is_correct_strict": False, "is_correct_loose": True},
            {"prompt": "a", "reward": 0.0, "is_correct_strict": False, "is_correct_loose": True},
            {"prompt": "a", "reward": 1.0, "is_correct_strict": True, "is_correct_loose": None},
            {"prompt": "a", "reward": None, "is_correct_strict": True, "is_correct_loose": None},
        ]
    )
    rows = ask("verifiers", frames)
    assert list(zip(ids(rows), rows["shadow"], rows["is_correct"], rows["shadow_is_correct"], strict=True)) == [
        ("a/0", "strict", True, False),
        ("a/1", "loose", False, True),
    ]
    with pytest.raises(Unanswerable, match=r"no shadow verifier judged these completions.*is_correct_<verifier>"):
        ask("verifiers", plant([{"prompt": "a"}]))


def test_terms_that_disagree() -> None:
    frames = plant(
        [
            # Length runs from 0 to 200: 200 is 1 of it, 150 is 3/4, 0 is 0.
            {"prompt": "a", "reward_correct": 0.0, "reward_length": 200.0, "reward_flat": 1.0},
            {"prompt": "a", "reward_correct": 1.0, "reward_length": 150.0, "reward_flat": 1.0},
            {"prompt": "a", "reward_correct": 0.0, "reward_length": 0.0, "reward_flat": 1.0},
            {"prompt": "a", "reward_correct": 1.0, "reward_length": 40.0, "reward_flat": 1.0},
        ]
    )
    rows = ask("terms", frames)
    assert list(zip(ids(rows), rows["high_term"], rows["low_term"], rows["disagreement"], strict=True)) == [
        ("a/0", "length", "correct", 1.0),
        ("a/3", "correct", "length", pytest.approx(0.8)),
    ]
    with pytest.raises(Unanswerable, match="the reward has one term, correct, and two can disagree"):
        ask("terms", plant([{"prompt": "a", "reward_correct": 0.0}]))


def test_flips_need_two_runs() -> None:
    with pytest.raises(Unanswerable, match=r"two runs or iterations, and got data\. Name both: --run demo/0003"):
        ask("flips", plant([{"prompt": "a"}]))


# Groups ---------------------------------------------------------------------------------------------------------------


def group(name: str, reason: str, kept: bool = False) -> dict[str, Any]:
    counts = dict.fromkeys(("n_correct", "n_unscorable", "n_truncated"), 0)
    row = {"iteration": 0, "group_id": f"0000/{name}", "prompt_id": name, "group_size": 1, "outcome": "all_wrong"}
    return {**row, **counts, "kept": kept, "reason": reason}


def test_silent_groups_say_why() -> None:
    groups = [
        group("a", "all wrong"),
        group("b", "mixed", kept=True),
        group("c", "all correct"),
        group("d", "all wrong"),
    ]
    frames = plant([{"prompt": name} for name in "abcd"], {"d": {"text": "Why?"}}, groups=groups)
    rows = ask("silent", frames)
    assert rows.select("group_id", "reason", "n_alike", "prompt").rows() == [
        ("0000/a", "all wrong", 2, "What is one and two?"),
        ("0000/d", "all wrong", 2, "Why?"),
        ("0000/c", "all correct", 1, "What is one and two?"),
    ]


def test_duplicates_are_within_a_group() -> None:
    texts = {"a": ["x", "y", "x", "x", "y", "z"], "b": ["x", "w"]}
    frames = plant([{"prompt": name, "completion_text": text} for name in texts for text in texts[name]])
    rows = ask("duplicates", frames)
    assert rows.select("completion_id", "n_same", "completion_indices", "completion_text").rows() == [
        ("0000/a/0", 3, "0 2 3", "x"),
        ("0000/a/1", 2, "1 4", "y"),
    ]


def test_length_pays_within_groups_whatever_lies_between_them() -> None:
    """In each group 10 more characters bring 0.5 more, while the group with long texts has the lower rewards."""
    lengths = {"a": [(10, 1.0), (20, 1.5)], "b": [(110, 0.0), (120, 0.5)], "c": [(10, 1.0), (20, 1.0)]}
    frames = plant([{"prompt": p, "completion_text": "x" * n, "reward": r} for p in lengths for n, r in lengths[p]])
    (row,) = ask("length", frames).rows(named=True)
    assert row["n_groups"] == 2  # the rewards of c are equal
    assert (row["correlation"], row["reward_per_100_characters"]) == (pytest.approx(1.0), pytest.approx(5.0))
    assert (row["characters_above_mean_reward"], row["characters_below"]) == (
        70.0,
        60.0,
    )  # (20 + 120) / 2, (10 + 110) / 2


def test_short_and_empty_completions_that_win() -> None:
    long = "It is three, since one and two are three."
    frames = plant(
        [
            {"prompt": "a", "completion_text": "  \n", "reward": 1.0},
            {"prompt": "a", "completion_text": "3", "reward": 1.0},
            {"prompt": "a", "completion_text": "4", "reward": 0.0},
            {"prompt": "a", "completion_text": long, "reward": 1.0},
            *[{"prompt": "a", "completion_text": long, "reward": 0.0}] * 3,
            *[{"prompt": "b", "completion_text": "", "reward": 1.0}] * 2,  # they win over nobody
        ]
    )
    rows = ask("short", frames)
    assert list(zip(ids(rows), rows["n_characters"], strict=True)) == [("a/0", 0), ("a/1", 1)]
    assert rows["group_median"].to_list() == [len(long)] * 2


# Texts ----------------------------------------------------------------------------------------------------------------


def test_what_looks_right_and_got_nothing() -> None:
    frames = plant(
        [
            {"prompt": "a", "completion_text": "It is 3. No, 4", "extracted_answer": "4"},
            {"prompt": "a", "completion_text": "3", "extracted_answer": " 3 "},
            {"prompt": "a", "completion_text": "three: 3", "reward": None, "score_error": "it took 5 s"},
            {"prompt": "a", "completion_text": "It is 33 or 13", "extracted_answer": "13"},
            {"prompt": "a", "completion_text": "It is 3", "extracted_answer": "3", "reward": 1.0},
            {"prompt": "b", "completion_text": "3 and 1"},
            {"prompt": "c", "completion_text": "3"},
        ],
        {"b": {"text": "What is 3 and 0?"}, "c": {"answer": None}},
    )
    rows = ask("unrewarded", frames)
    assert list(zip(ids(rows), rows["why"], rows["is_gold_in_prompt"], strict=True)) == [
        ("a/1", "the gold answer was extracted, and judged wrong", False),
        ("a/0", "another answer was extracted", False),
        ("a/2", "it took 5 s", False),
        ("b/0", "no answer was extracted", True),
    ]


def test_repetitions_by_words_and_by_compression() -> None:
    texts = ["so it is " * 6, "well " * 4 + "that is all I can say about that", "哈" * 60, "three words only", ""]
    rows = ask("repetition", plant([{"prompt": "a", "completion_text": text} for text in texts]))
    # The first has 16 sequences of three words, 3 of them different. The second has 9, of which "well well well" comes
    # twice: 1/9 is not enough. The third is one word of 180 bytes.
    assert ids(rows) == ["a/0", "a/2"]
    assert rows["repeated_fraction"].to_list() == [pytest.approx(13 / 16), None]
    assert rows["compression_ratio"].to_list()[1] > 10


def test_scripts_that_the_prompt_does_not_have() -> None:
    frames = plant(
        [
            {"prompt": "a", "completion_text": "It is три"},  # 4 Latin letters, 3 Cyrillic
            {"prompt": "a", "completion_text": "答案是 3"},
            {"prompt": "a", "completion_text": "It is 3 — café"},
            {"prompt": "b", "completion_text": "It is 3"},
            {"prompt": "b", "completion_text": "答案是 3 (three)"},
        ],
        {"b": {"text": "一加二等于几?"}},
    )
    rows = ask("scripts", frames)
    assert list(zip(ids(rows), rows["scripts"], rows["foreign_fraction"], strict=True)) == [
        ("b/0", "Latin", 1.0),
        ("a/1", "Han", 1.0),
        ("b/1", "Latin", pytest.approx(5 / 8)),
        ("a/0", "Cyrillic", pytest.approx(3 / 7)),
    ]


def test_gold_that_stands_in_the_prompt() -> None:
    frames = plant(
        [
            {"prompt": "a", "reward": 1.0},
            {"prompt": "a", "reward": 0.0},
            {"prompt": "b"},
            {"prompt": "c", "reward": 1.0},
        ],
        {"a": {"text": "Is 1 + 2 = 3?"}, "b": {"text": "What is 33 - 30?"}, "c": {"text": "Say 3."}},
    )
    rows = ask("gold_in_prompt", frames)
    assert rows.select("prompt_id", "n_completions", "pass_rate").rows() == [("c", 1, 1.0), ("a", 2, 0.5)]


def test_several_answers() -> None:
    texts = {
        r"\boxed{3} or else \boxed{4}": "3 / 4",
        "The answer is 3. #### 3": None,
        "3, 4, 5 or 6": "3 / 4 / 5 / 6",
        "1 + 2 = 3, and 3 + 4 = 7": None,
        "<answer>3</answer><answer>5</answer>": "3 / 5",
    }
    rewards = [0.0, 1.0, 0.0, 1.0, 1.0]
    frames = plant([{"prompt": "a", "completion_text": t, "reward": r} for t, r in zip(texts, rewards, strict=True)])
    rows = ask("several_answers", frames)
    assert list(zip(ids(rows), rows["answers"], strict=True)) == [
        ("a/4", "3 / 5"),
        ("a/2", "3 / 4 / 5 / 6"),
        ("a/0", "3 / 4"),
    ]
    assert set(rows["answers"]) == {listed for listed in texts.values() if listed}


# The update -----------------------------------------------------------------------------------------------------------


def test_truncated_completions_that_are_trained_on() -> None:
    cut = {"finish_reason": "length"}
    frames = plant(
        [
            {"prompt": "a", "steps": [4, 5], "advantage": -1.0, **cut},
            {"prompt": "a", "steps": [4], "advantage": 2.0, **cut},
            {"prompt": "a", "steps": [4], "advantage": 1.5},
            {"prompt": "a", "advantage": 1.0, **cut},
        ]
    )
    masked = frames["token_logprobs"].filter(pl.col("completion_id") != "0000/a/1")
    rows = ask("truncated", {**frames, "token_logprobs": masked})
    assert list(zip(ids(rows), rows["advantage"], rows["n_steps"], strict=True)) == [("a/1", 2.0, 0), ("a/0", -1.0, 2)]
    assert rows["prompt_id"].to_list() == ["a", "a"]


def test_tokens_on_which_sampler_and_trainer_disagree() -> None:
    frames = plant(
        [
            {"prompt": "a", "steps": [0], "sampling_logprobs": [-0.5, -1.0], "old_logprobs": [-0.5, -1.25]},
            {"prompt": "a", "steps": [0], "sampling_logprobs": [-2.0, -1.0], "old_logprobs": [-1.5, -1.0]},
            {"prompt": "a", "sampling_logprobs": [-9.0, -9.0]},
        ]
    )
    rows = ask("token_mismatch", frames)
    shown = rows.select("completion_id", "position", "token_id", "disagreement").rows()
    assert shown[:2] == [("0000/a/1", 0, 5, 0.5), ("0000/a/0", 1, 6, 0.25)]
    assert rows.height == 4


def test_how_far_sampler_and_trainer_are_apart() -> None:
    frames = plant(
        [
            {"prompt": "a", "steps": [0], "sampling_logprobs": [-0.5, -1.0], "old_logprobs": [-0.5, -1.25]},
            {"prompt": "a", "steps": [0], "sampling_logprobs": [-2.0, -1.0], "old_logprobs": [-1.5, -1.0]},
            {"prompt": "a", "sampling_logprobs": [-9.0, -9.0]},
        ]
    )
    (row,) = ask("agreement", frames).rows(named=True)
    # Sizes 0, 0, 1/4 and 1/2: their mean is 3/16, their median 1/8. Two of four ratios, 0.78 and 1.65, are outside.
    assert (row["n_completions"], row["n_tokens"], row["disagreement_mean"], row["outside_fraction"]) == (
        2,
        4,
        0.1875,
        0.5,
    )
    assert (row["disagreement_p50"], row["disagreement_max"]) == (0.125, 0.5)


def test_what_a_step_saw() -> None:
    frames = plant(
        [
            {"prompt": "a", "steps": [0, 1], "advantage": -0.5},
            {"prompt": "a", "steps": [0], "advantage": 0.5, "completion_text": "3!"},
            {"prompt": "a"},
        ]
    )
    rows = ask("steps", frames)
    assert list(zip(rows["step"], ids(rows), rows["advantage"], strict=True)) == [
        (0, "a/1", 0.5),
        (0, "a/0", -0.5),
        (1, "a/0", -0.5),
    ]
    assert rows["completion_text"][0] == "3!"


# Of one iteration, questions about progress --------------------------------------------------------------------------


def test_prompts_that_never_or_always_succeed_or_just_flipped() -> None:
    def stats(name: str, n_correct: int, recent: float) -> dict[str, Any]:
        row = {"prompt_id": name, "n_groups": 1, "n_completions": 4, "n_correct": n_correct, "last_iteration": 0}
        return {**row, "pass_rate": n_correct / 4, "recent_pass_rate": recent}

    now = {"a": [0, 0], "b": [1, 1], "c": [1, 1], "d": [0, 0], "e": [1, 0], "f": [0, 0]}
    before = [stats("a", 0, 0.0), stats("b", 4, 1.0), stats("c", 1, 0.25), stats("d", 3, 0.75), stats("e", 2, 0.5)]
    frames = plant([{"prompt": name, "reward": float(r)} for name in now for r in now[name]], prompt_stats=before)
    rows = ask("prompts", frames)
    assert rows.select("prompt_id", "pattern", "n_completions", "pass_rate").rows() == [
        ("d", "flipped to wrong", 6, 0.5),
        ("c", "flipped to right", 6, 0.5),
        ("a", "never", 6, 0.0),
        ("f", "never", 2, 0.0),
        ("b", "always", 6, 1.0),
    ]


def test_questions_without_their_input_say_so() -> None:
    frames = plant([{"prompt": "a", "reward_correct": 1.0}])
    with pytest.raises(Unanswerable, match="the reward has no term beside `correct`"):
        ask("format", frames)
    with pytest.raises(Unanswerable, match="no iteration among these was evaluated"):
        ask("held_out", frames)
    for name in ("token_mismatch", "agreement"):
        with pytest.raises(Unanswerable, match=f"audit {name}: nothing was trained on"):
            ask(name, frames)
    with pytest.raises(Unanswerable, match="no completion of these has a verdict"):
        ask("prompts", plant([{"prompt": "a", "is_correct": None}]))


def test_where_there_are_no_verdicts_rewards_are_compared() -> None:
    evaluated = {"iteration": 0, "policy": "after", "prompt_id": "z", "completion_index": 0, "reward": 0.25}
    frames = plant([{"prompt": "a", "reward": 0.75, "is_correct": None}], eval=[evaluated])
    (row,) = ask("held_out", frames).rows(named=True)
    assert (row["reward_mean"], row["held_out_reward"], row["pass_rate"]) == (0.75, 0.25, None)
    assert (row["train_change"], row["held_out_change"], row["rises_alone"]) == (0.0, 0.0, False)


# What all have in common ----------------------------------------------------------------------------------------------


def test_a_limit_takes_the_first_and_counts_all() -> None:
    tables = frame_tables(plant([{"prompt": "a", "reward": float(n)} for n in range(7)]))
    found = answer(QUESTIONS["highest"], tables, 2)
    assert (found.rows["reward"].to_list(), found.n_rows) == ([6.0, 5.0], 7)


def test_a_filter_is_about_the_columns_of_the_answer() -> None:
    tables = frame_tables(plant([{"prompt": "a", "reward": float(n)} for n in range(7)]))
    found = answer(QUESTIONS["highest"], tables, 2, pl.sql_expr("reward < 3"))
    assert (found.rows["reward"].to_list(), found.n_rows) == ([2.0, 1.0], 3)
    with pytest.raises(
        BadInput, match=r"--where: unable to find column \"rewrd\"\. There are run, iteration, .*reward"
    ):
        answer(QUESTIONS["highest"], tables, 2, pl.sql_expr("rewrd < 3"))


def ordinary() -> Frames:
    """Two groups of which every question about one iteration finds something."""
    texts = ["3", "4 or 5 or 3", "4 or 5 or 3", "да да да да да да да да", "It is so, it is so, it is so"]
    completions = [
        {
            "prompt": name,
            "completion_text": text,
            "reward": float(text == "3"),
            "reward_length": float(len(text)),
            "reward_correct": float(text == "3"),
            "is_correct_other": True,
            "steps": [0, 1],
            "finish_reason": "length",
        }
        for name in "ab"
        for text in texts
    ]
    before = {"n_groups": 1, "n_completions": 5, "n_correct": 4, "pass_rate": 0.8, "recent_pass_rate": 0.8}
    return plant(
        completions,
        {name: {"text": "Say 3."} for name in "ab"},
        groups=[group(name, "all wrong") for name in "ab"],
        eval=[{"iteration": 0, "policy": "after", "prompt_id": "a", "completion_index": 0, "is_correct": True}],
        prompt_stats=[{"prompt_id": name, **before} for name in "ab"],
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name != "flips"])
def test_no_order_depends_on_the_order_of_rows(name: str) -> None:
    """The order ends with ids that tell any two rows apart."""
    rows = ask(name, ordinary())
    assert rows.height > 0
    # Sums of floating-point numbers in another order may differ in the last digit.
    assert_frame_equal(rows, ask(name, {table: frame.reverse() for table, frame in ordinary().items()}))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "flips"])
def test_token_lists_are_read_for_the_questions_about_tokens(name: str) -> None:
    touched: set[str] = set()

    def scan(table: str) -> pl.LazyFrame:
        frame = ordinary()[table]

        def watched(column: str) -> pl.Expr:
            def touch(values: pl.Series) -> pl.Series:
                touched.add(column)
                return values

            return pl.col(column).map_batches(touch, return_dtype=frame.schema[column])

        return frame.lazy().with_columns(watched(column) for column in frame.columns if column.endswith(TOKEN_LISTS))

    answer(QUESTIONS[name], IterationTables(scan), 3)
    logprobs = {"sampling_logprobs", "old_logprobs"}
    lists = {"token_mismatch": {"completion_token_ids", *logprobs}, "agreement": logprobs}
    assert touched == lists.get(name, set())
