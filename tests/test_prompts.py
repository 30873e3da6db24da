"""Raw prompts -> the prompts table: chats, ids, duplicates, splits."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import BadInput
from pipeline.params import PromptsParams
from pipeline.prompt_sources import RawPrompt
from pipeline.prompts import build_prompts, chat_of, prompt_id_of, without_idle_blanks
from pipeline.seeds import stable_hash
from pipeline.table_checks import check_schema, check_table
from pipeline.tables import PROMPTS


def params(**changes: Any) -> PromptsParams:
    source = {"file": "data/sources/x.jsonl", "prompt": "question", "answer": "answer"}
    return PromptsParams.model_validate({"source": source, "train_size": 2, "eval_size": 1, **changes})


def row(prompt: Any, answer: str | None = "1", number: int = 1) -> RawPrompt:
    return RawPrompt(prompt, answer, "data/sources/x.jsonl", None, f"data/sources/x.jsonl: line {number}")


def rows(n_prompts: int) -> list[RawPrompt]:
    return [row(f"What is {i} + 1?", str(i + 1), i + 1) for i in range(n_prompts)]


def ids(table: pl.DataFrame, split: str) -> set[str]:
    return set(table.filter(pl.col("split") == split)["prompt_id"])


def test_table_obeys_its_schema_and_holds_the_sizes_asked_for() -> None:
    made = build_prompts(rows(10), params(train_size=5, eval_size=3))
    check_schema(made.table.schema, PROMPTS, "prompts")
    check_table(made.table, PROMPTS, "prompts")
    assert len(ids(made.table, "train")) == 5
    assert len(ids(made.table, "eval")) == 3
    assert (made.n_rows, made.n_duplicates, made.n_unused) == (10, 0, 2)
    assert made.table["prompt_id"].is_sorted()


def test_id_is_the_hash_of_the_messages() -> None:
    made = build_prompts(rows(3), params(system="Be brief.", template="Q: {prompt}")).table
    for record in made.to_dicts():
        assert record["prompt_id"] == stable_hash(record["messages"])[:16]
        assert record["messages"][0] == {"role": "system", "content": "Be brief."}
        assert record["messages"][1]["content"].startswith("Q: What is ")


def test_verifier_follows_the_source_where_it_is_left_out() -> None:
    assert set(build_prompts(rows(3), params()).table["verifier"]) == {"math"}
    assert set(build_prompts(rows(3), params(verifier="none")).table["verifier"]) == {"none"}


def test_braces_of_the_prompt_are_data() -> None:
    text = r"What is \frac{1}{2} of {0}, {prompt} and {x!r}?"
    (message,) = chat_of(text, None, "{prompt} Answer {briefly}.")
    assert message == {"role": "user", "content": text + " Answer {briefly}."}


def test_template_goes_around_the_last_message_of_a_chat() -> None:
    chat = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "2"},
    ]
    assert chat_of(chat, "Be brief.", "{prompt}!") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "2!"},
    ]
    assert chat[-1]["content"] == "2"  # the row is left as it was


def test_a_chat_keeps_its_own_system_message() -> None:
    chat = [{"role": "system", "content": "Own."}, {"role": "user", "content": "2"}]
    assert chat_of(chat, "Be brief.", "{prompt}")[0]["content"] == "Own."


def test_duplicates_are_counted_and_the_first_is_kept() -> None:
    twice = [*rows(3), row("What is 0 + 1?", "1", 4), row("  What is   0 + 1?\r\n", "1", 5)]
    made = build_prompts(twice, params())
    assert (made.n_rows, made.n_duplicates) == (5, 2)
    assert made.table.height == 3
    assert prompt_id_of([{"role": "user", "content": "What is 0 + 1?"}]) in set(made.table["prompt_id"])


def test_kept_text_is_the_one_of_the_source() -> None:
    art = "  X  O\n X   O \n"
    made = build_prompts([row(art), *rows(2)], params()).table
    assert art in {messages[0]["content"] for messages in made["messages"].to_list()}


def test_line_breaks_tell_prompts_apart() -> None:
    assert without_idle_blanks("1 2\n3 4\n5 6") != without_idle_blanks("1 2 3\n4 5 6")
    grids = [row("1 2\n3 4\n5 6", "7"), row("1 2 3\n4 5 6", "8"), row("1", "9")]
    assert build_prompts(grids, params()).n_duplicates == 0


def test_two_answers_to_one_prompt_are_an_error_that_names_both_rows() -> None:
    bad = [*rows(3), row("What is 2 + 1?", "4", 7)]
    with pytest.raises(BadInput) as caught:
        build_prompts(bad, params())
    message = str(caught.value)
    for part in ("line 7", "line 3", "'4'", "'3'"):
        assert part in message


def test_two_answers_are_fine_where_no_verifier_compares_them() -> None:
    made = build_prompts([*rows(3), row("What is 2 + 1?", "4", 7)], params(verifier="none"))
    kept = made.table.filter(pl.col("prompt_id") == prompt_id_of([{"role": "user", "content": "What is 2 + 1?"}]))
    assert kept["answer"].to_list() == ["3"]


def with_tests(metadata: str | None, number: int = 1) -> RawPrompt:
    return RawPrompt("Add.", None, "x.jsonl", metadata, f"x.jsonl: line {number}", "code")


CASE = '{"kind": "calls", "function": "f", "cases": [{"args": [1], "expected": %s}]}'


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, r"x.jsonl: line 1: metadata: metadata: None: Input should be a valid dictionary"),
        (CASE % '{"python": "f(1)"}', r"x.jsonl: line 1: metadata: metadata.cases.0.expected: .* is no Python literal"),
        ('{"kind": "program"}', r"x.jsonl: line 1: metadata: metadata.cases: .*Field required"),
    ],
)
def test_bad_hidden_tests_are_refused_before_a_rollout_is_made(metadata: str | None, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build_prompts([with_tests(metadata), *rows(5)], params())


def test_two_sets_of_hidden_tests_for_one_prompt_are_an_error() -> None:
    with pytest.raises(BadInput, match=r"x.jsonl: line 2: its prompt is that of x.jsonl: line 1, but its hidden tests"):
        build_prompts([with_tests(CASE % 1), with_tests(CASE % 2, 2), *rows(5)], params())


def test_too_few_distinct_prompts_name_both_counts() -> None:
    with pytest.raises(BadInput, match=r"need 9 distinct prompts, and the source gives 3 \(of 4 rows\)") as caught:
        build_prompts([*rows(3), row("What is 0 + 1?")], params(train_size=5, eval_size=4))
    assert "lower train_size or eval_size" in str(caught.value)


def test_exactly_enough_prompts_are_enough() -> None:
    assert build_prompts(rows(9), params(train_size=5, eval_size=4)).n_unused == 0


def test_held_out_prompts_stay_when_train_size_grows() -> None:
    small = build_prompts(rows(50), params(train_size=10, eval_size=5)).table
    large = build_prompts(rows(50), params(train_size=40, eval_size=5)).table
    assert ids(small, "eval") == ids(large, "eval")
    assert ids(small, "train") < ids(large, "train")


def test_seed_changes_the_split() -> None:
    first, second = (build_prompts(rows(50), params(train_size=20, eval_size=20, seed=seed)).table for seed in (0, 1))
    assert ids(first, "eval") != ids(second, "eval")


@given(st.permutations(rows(12)), st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_order_of_the_rows_changes_nothing(shuffled: list[RawPrompt], seed: int) -> None:
    sizes = params(train_size=6, eval_size=4, seed=seed)
    assert build_prompts(shuffled, sizes).table.equals(build_prompts(rows(12), sizes).table)


@given(st.lists(st.text(alphabet="ab \n\t", min_size=1, max_size=6), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_no_prompt_of_one_split_differs_in_blanks_alone_from_one_of_the_other(texts: list[str]) -> None:
    distinct = {without_idle_blanks(text) for text in texts}
    if len(distinct) < 2:
        return
    made = build_prompts([row(text) for text in texts], params(train_size=len(distinct) - 1, eval_size=1))
    contents = [without_idle_blanks(messages[0]["content"]) for messages in made.table["messages"].to_list()]
    assert sorted(contents) == sorted(distinct)
    assert made.n_duplicates == len(texts) - len(distinct)
