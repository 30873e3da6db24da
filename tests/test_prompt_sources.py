"""Each prompt source, on good rows and on every kind of bad one."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import BadInput, TransientError
from pipeline.params import PromptsParams
from pipeline.prompt_sources import RawPrompt, read_prompts
from pipeline.prompt_sources.columns import number_text
from pipeline.prompt_sources.reasoning_gym_tasks import split_by_weight


def params(source: dict[str, Any], **changes: Any) -> PromptsParams:
    return PromptsParams.model_validate({"source": source, "train_size": 2, "eval_size": 1, **changes})


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data/sources/ in the current directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data/sources"
    folder.mkdir(parents=True)
    return folder


# Files ----------------------------------------------------------------------------------------------------------------


def read(name: str, **changes: Any) -> list[RawPrompt]:
    source = {"file": f"data/sources/{name}", "prompt": "question", "answer": "answer"}
    return read_prompts(params(source, **changes))


def write_lines(file: Path, *rows: object) -> None:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_jsonl_rows(sources: Path) -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u", "name": None}]
    write_lines(
        sources / "x.jsonl", {"question": "a\u2028b", "answer": "x "}, "", {"question": chat, "answer": 5, "z": 1}
    )
    first, second = read("x.jsonl")
    assert (first.prompt, first.answer, first.source) == ("a\u2028b", "x", "data/sources/x.jsonl")
    assert first.where == "data/sources/x.jsonl: line 1"
    assert second.prompt == [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert (second.answer, second.where, second.metadata) == ("5", "data/sources/x.jsonl: line 3", None)


def test_a_row_may_name_its_verifier_and_what_that_needs(sources: Path) -> None:
    tools = {"tool_calls": [], "limit": 0.5}
    write_lines(
        sources / "x.jsonl",
        {"question": "a", "answer": 5, "by": None, "data": None},
        {"question": "b", "answer": None, "by": "tool_calls", "data": tools},
        {"question": "c", "answer": None, "by": "json_answer", "data": ' {"schema": true}'},
    )
    source = {"file": "data/sources/x.jsonl", "prompt": "question", "answer": "answer", "metadata": "data"}
    rows = read_prompts(params({**source, "verifier": "by"}))
    assert [row.verifier for row in rows] == [None, "tool_calls", "json_answer"]
    assert [row.metadata and json.loads(row.metadata) for row in rows] == [None, tools, {"schema": True}]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"by": "maths"}, r"x\.jsonl: line 1: by: 'maths' is no verifier\. Name one of math, reasoning_gym, "),
        ({"by": "math", "answer": None}, r"line 1: answer: it is null, and the verifier math needs an answer"),
        ({"data": "{"}, r"line 1: data: '\{' is not valid JSON \(Expecting"),
        ({"data": {"a": "\ud800"}}, r"line 1: data: character 8 .* is half of a surrogate pair"),
    ],
)
def test_a_bad_verifier_or_metadata_is_named(sources: Path, row: dict[str, Any], message: str) -> None:
    write_lines(sources / "x.jsonl", {"question": "a", "answer": "5", "by": None, "data": None, **row})
    source = {"file": "data/sources/x.jsonl", "prompt": "question", "answer": "answer", "metadata": "data"}
    with pytest.raises(BadInput, match=message):
        read_prompts(params({**source, "verifier": "by"}, verifier="none"))


def test_a_row_without_a_verifier_of_its_own_needs_what_that_of_the_params_needs(sources: Path) -> None:
    write_lines(sources / "x.jsonl", {"question": "a", "by": "none"}, {"question": "b", "by": None})
    source = {"file": "data/sources/x.jsonl", "prompt": "question", "verifier": "by"}
    with pytest.raises(BadInput, match=r"line 2: answer: it is null, and the verifier math needs an answer"):
        read_prompts(params(source))


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("5", "5"),
        ("5.0", "5"),
        ("-0.50", "-0.5"),
        ("12000000000000000000001", "12000000000000000000001"),
        ("3.14159265358979323846", "3.14159265358979323846"),
        ("1e3", "1000"),
        ("2.5e-7", "0.00000025"),
        ("1e999999999", "1E+999999999"),
        ('"5.0"', "5.0"),
    ],
)
def test_numbers_of_jsonl_become_text_exactly(sources: Path, written: str, text: str) -> None:
    (sources / "x.jsonl").write_text(f'{{"question": "q", "answer": {written}}}')
    assert [row.answer for row in read("x.jsonl")] == [text]


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
def test_text_of_a_number_reads_back_as_that_number(value: int | float) -> None:
    text = number_text(value)
    assert type(value)(Decimal(text)) == value
    assert "e" not in text.lower()


def test_csv_fields_stay_the_text_that_they_are(sources: Path) -> None:
    (sources / "x.csv").write_text('\ufeffquestion,other,answer\n"a, ""b""\nc",1,007\nd,2,5.10\n', encoding="utf-8")
    first, second = read("x.csv")
    assert (first.prompt, first.answer) == ('a, "b"\nc', "007")
    assert (second.answer, second.where) == ("5.10", "data/sources/x.csv: row 2")


def test_parquet_numbers_and_chats(sources: Path) -> None:
    chats = [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]]
    pl.DataFrame({"question": chats, "answer": [5.0, 0.25]}).write_parquet(sources / "x.parquet")
    rows = read("x.parquet")
    assert [row.prompt for row in rows] == chats
    assert [row.answer for row in rows] == ["5", "0.25"]
    assert rows[1].where == "data/sources/x.parquet: row 2"


def test_answers_may_be_left_out_without_a_verifier(sources: Path) -> None:
    write_lines(sources / "x.jsonl", {"question": "a"}, {"question": "b", "answer": ""})
    source = {"file": "data/sources/x.jsonl", "prompt": "question"}
    assert [row.answer for row in read_prompts(params(source, verifier="none"))] == [None, None]
    with pytest.raises(BadInput, match=r"prompts\.source\.answer: it is missing, and the verifier math needs"):
        read_prompts(params(source))


def test_absolute_path_and_a_link_of_dvc_are_inside(sources: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "cached", {"question": "a", "answer": "1"})
    (sources / "x.jsonl").symlink_to(tmp_path / "cached")
    source = {"file": str(sources / "x.jsonl"), "prompt": "question", "answer": "answer"}
    (row,) = read_prompts(params(source))
    assert row.source == "data/sources/x.jsonl"


BAD_ROWS: dict[str, tuple[object, str]] = {
    "empty prompt": ({"question": "  ", "answer": "1"}, r"line 2: question: '  ' is empty"),
    "null prompt": ({"question": None, "answer": "1"}, r"line 2: question: it is null"),
    "number as prompt": ({"question": 7, "answer": "1"}, r"line 2: question: 7 is a number, not a text or a list"),
    "object as prompt": ({"question": {"a": 1}, "answer": "1"}, r"line 2: question: \{'a': 1\} is an object, not"),
    "empty chat": ({"question": [], "answer": "1"}, r"line 2: question: the list of messages is empty"),
    "message of another shape": (
        {"question": [{"role": "user", "text": "a"}], "answer": "1"},
        r"line 2: question\[0\]: .* is not an object of role and content",
    ),
    "unknown role": (
        {"question": [{"role": "human", "content": "a"}], "answer": "1"},
        r"line 2: question\[0\].role: 'human' is none of \('system', 'user', 'assistant'\)",
    ),
    "empty message": (
        {"question": [{"role": "user", "content": ""}], "answer": "1"},
        r"line 2: question\[0\].content: '' is empty",
    ),
    "chat ending with the assistant": (
        {"question": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "answer": "1"},
        r"line 2: question: the last message has the role 'assistant'",
    ),
    "null answer": ({"question": "a", "answer": None}, r"line 2: answer: it is null, and the verifier math needs"),
    "empty answer": ({"question": "a", "answer": " "}, r"line 2: answer: it is ' ', which is empty"),
    "boolean answer": ({"question": "a", "answer": True}, r"line 2: answer: True is a boolean, not a text or a number"),
    "list as answer": (
        {"question": "a", "answer": ["1"]},
        r"line 2: answer: \['1'\] is a list, not a text or a number",
    ),
    "NaN answer": ('{"question": "a", "answer": NaN}', r"line 2: answer: nan is not a finite number"),
    "half a character": (r'{"question": "a\ud800", "answer": "1"}', r"line 2: question: character 2 .* half of a surr"),
    "missing column": ({"questions": "a", "answer": "1"}, r"line 2: .*no column 'question'.*nearest is 'questions'"),
    "bad JSON": ('{"question": "a",', r"""line 2: it is not valid JSON \(.*\): '\{"question": "a",'"""),
    "number too long": (f'{{"question": "a", "answer": {"1" * 5000}}}', r"line 2: it is not valid JSON \(Exceeds"),
    "no object": ('["a"]', r"""line 2: '\["a"\]' is not a JSON object"""),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_row_of_jsonl_is_named(sources: Path, name: str) -> None:
    row, message = BAD_ROWS[name]
    write_lines(sources / "x.jsonl", {"question": "fine", "answer": "1"}, row)
    with pytest.raises(BadInput, match=rf"^data/sources/x\.jsonl: {message}"):
        read("x.jsonl")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b"", r"x\.jsonl: it has no rows"),
        ("x.csv", b"question,answer\n", r"x\.csv: it has no rows"),
        ("x.csv", b"", r"x\.csv: it can't be read as CSV"),
        ("x.csv", b"question,answer\na,1\nb,2,3\n", r"x\.csv: it can't be read as CSV"),
        ("x.csv", b"question,answer\na,1\n,2\n", r"x\.csv: row 2: question: it is null"),
        ("x.csv", b"question,answer\na,1\nb,\n", r"x\.csv: row 2: answer: it is null"),
        ("x.csv", b"question,anwser\na,1\n", r"x\.csv: it has no column 'answer'.*The nearest is 'anwser'"),
        (
            "x.jsonl",
            b'{"question": "a", "answer": "1"}\n{"question": "\xff"}\n',
            r"x\.jsonl: line 2: byte 0xff is not UTF-8",
        ),
        ("x.csv", b"question,answer\na,1\n\xe9,2\n", r"x\.csv: line 3: byte 0xe9 is not UTF-8"),
        ("x.parquet", b"PAR1 is not enough", r"x\.parquet: it can't be read as Parquet"),
    ],
)
def test_bad_file_is_named(sources: Path, name: str, content: bytes, message: str) -> None:
    (sources / name).write_bytes(content)
    with pytest.raises(BadInput, match=rf"data/sources/{message}"):
        read(name)


def test_dates_are_no_answers(sources: Path) -> None:
    frame = pl.DataFrame({"question": ["a"], "answer": [datetime.date(2020, 1, 2)]})
    frame.write_parquet(sources / "x.parquet")
    with pytest.raises(BadInput, match=r"x.parquet: row 1: answer: .* is a date, not a text or a number"):
        read("x.parquet")


def test_missing_file_names_the_nearest(sources: Path) -> None:
    write_lines(sources / "train.jsonl", {"question": "a", "answer": "1"})
    with pytest.raises(BadInput, match=r"there is no file 'data/sources/trian.jsonl'. The nearest is 'train.jsonl'"):
        read("trian.jsonl")


def test_unknown_extension_names_the_known_ones(sources: Path) -> None:
    (sources / "x.txt").write_text("a")
    with pytest.raises(BadInput, match=r"ends in '.txt', which is none of .jsonl, .csv, .parquet"):
        read("x.txt")


@pytest.mark.parametrize("name", ["x.jsonl", "data/sources/../x.jsonl", "/tmp/x.jsonl"])
def test_file_that_dvc_does_not_watch_is_refused(sources: Path, name: str) -> None:
    write_lines(Path("x.jsonl"), {"question": "a", "answer": "1"})
    with pytest.raises(BadInput, match=r"not under data/sources/, the folder that DVC watches.*Copy it"):
        read_prompts(params({"file": name, "prompt": "question", "answer": "answer"}))


# reasoning-gym --------------------------------------------------------------------------------------------------------


def generate(*tasks: dict[str, Any], size: int = 6, seed: int = 0) -> list[RawPrompt]:
    return read_prompts(params({"reasoning_gym": list(tasks), "size": size, "seed": seed}))


@given(st.integers(1, 500), st.lists(st.sampled_from([0.1, 0.2, 1.0, 3.0, 1e-3]), min_size=1, max_size=6))
def test_shares_add_up_and_are_within_one_of_the_ideal(size: int, weights: list[float]) -> None:
    shares = split_by_weight(size, weights)
    assert sum(shares) == size
    assert all(
        abs(share - size * weight / sum(weights)) < 1 + 1e-9 for share, weight in zip(shares, weights, strict=True)
    )


def test_items_are_split_by_weight_and_seeded_by_task_and_place() -> None:
    chain_sum = {"task": "chain_sum", "weight": 1.0}
    rows = generate(chain_sum, {"task": "gcd", "weight": 3.0}, chain_sum, size=10)
    assert [row.source for row in rows] == ["reasoning_gym/chain_sum"] * 2 + ["reasoning_gym/gcd"] * 6 + [
        "reasoning_gym/chain_sum"
    ] * 2
    assert rows[0].prompt != rows[8].prompt
    assert rows == generate(chain_sum, {"task": "gcd", "weight": 3.0}, chain_sum, size=10)
    assert [row.prompt for row in generate(chain_sum, seed=1)] != [row.prompt for row in generate(chain_sum)]


@pytest.mark.parametrize(
    "task", ["chain_sum", "countdown", "spell_backward", "n_queens", "sudoku", "family_relationships"]
)
def test_metadata_lets_the_tasks_own_scorer_judge(task: str) -> None:
    from reasoning_gym.factory import create_dataset

    for row in generate({"task": task}, size=2):
        assert row.metadata is not None
        stored = json.loads(row.metadata)
        assert set(stored) == {"task", "config", "entry"}
        assert stored["entry"]["question"] == row.prompt
        scorer = create_dataset(stored["task"], **stored["config"])
        assert scorer.score_answer(row.answer, stored["entry"]) == 1
        assert scorer.score_answer("no answer at all", stored["entry"]) < 1


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"task": "chain_summ"}, r"reasoning_gym\.0\.task: reasoning-gym has no task 'chain_summ'.*'chain_sum'"),
        ({"task": "composite"}, r"reasoning_gym\.0\.task: reasoning-gym has no task 'composite'"),
        ({"task": "rearc"}, r"reasoning_gym\.0\.task: the items of rearc don't survive .* scores 1, but 0.05"),
        (
            {"task": "chain_sum", "config": {"max_term": 3}},
            r"reasoning_gym\.0\.config\.max_term: unknown key of chain_sum\. The nearest .* 'max_terms'",
        ),
        ({"task": "chain_sum", "config": {"seed": 3}}, r"reasoning_gym\.0\.config\.seed: .*Use prompts\.source\.seed"),
        (
            {"task": "chain_sum", "config": {"min_terms": 5, "max_terms": 2}},
            r"reasoning_gym\.0\.config\.max_terms: chain_sum refuses 2 \(max_terms must be >= min_terms\)",
        ),
        (
            {"task": "chain_sum", "config": {"min_digits": 1, "max_terms": "three"}},
            r"reasoning_gym\.0\.config\.max_terms: chain_sum refuses 'three' \(.*not supported",
        ),
        (
            {"task": "chain_sum", "config": {"min_digits": 1.5, "max_digits": 2.5}},
            r"reasoning_gym\.0\.config: chain_sum can't make item 1 with .*1\.5",
        ),
    ],
)
def test_bad_task_is_named(task: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=rf"^params\.yaml: prompts\.source\.{message}"):
        generate(task)


def test_task_without_a_share_is_named() -> None:
    with pytest.raises(BadInput, match=r"reasoning_gym\.1\.weight: its weight 0.001 leaves it none of 6 prompts"):
        generate({"task": "chain_sum"}, {"task": "gcd", "weight": 0.001})


# Data sets ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, and a cache of our own; both are read when the libraries are imported, so they are set there."""
    import datasets
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def load(name: str, split: str = "train", answer: str = "answer") -> list[RawPrompt]:
    source = {"dataset": name, "split": split, "revision": "main", "prompt": "question", "answer": answer}
    return read_prompts(params(source))


@pytest.mark.usefixtures("hub_is_off")
def test_folder_laid_out_like_a_data_set(sources: Path) -> None:
    (sources / "sums").mkdir()
    write_lines(sources / "sums/train.jsonl", {"question": "1 + 1", "answer": 2}, {"question": "1 + 2", "answer": 3})
    write_lines(sources / "sums/test.jsonl", {"question": "2 + 2", "answer": 4})
    rows = load("data/sources/sums")
    assert [(row.prompt, row.answer) for row in rows] == [("1 + 1", "2"), ("1 + 2", "3")]
    assert (rows[1].source, rows[1].where) == ("data/sources/sums", "data/sources/sums: row 2")
    assert [row.prompt for row in load("data/sources/sums", split="test")] == ["2 + 2"]
    with pytest.raises(
        BadInput, match=r"prompts.source.dataset: 'data/sources/sums' \(split 'trian'\) can't be loaded"
    ):
        load("data/sources/sums", split="trian")
    with pytest.raises(BadInput, match=r"data/sources/sums: it has no column 'answers'.*The nearest is 'answer'"):
        load("data/sources/sums", answer="answers")


@pytest.mark.usefixtures("hub_is_off", "sources")
def test_data_set_that_dvc_does_not_watch_is_refused() -> None:
    Path("sums").mkdir()
    with pytest.raises(BadInput, match=r"prompts.source.dataset: 'sums' is not under data/sources/"):
        load("sums")


@pytest.mark.usefixtures("hub_is_off", "sources")
def test_hub_out_of_reach_is_transient() -> None:
    with pytest.raises(TransientError, match=r"prompts.source.dataset: the hub can't be reached for 'someone/sums'"):
        load("someone/sums")


@pytest.mark.usefixtures("sources")
def test_hub_without_such_a_data_set_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def refuse(*_: object, **__: object) -> None:
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'someone/sums' doesn't exist on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(BadInput, match=r"'someone/sums' .* can't be loaded \(Dataset 'someone/sums' doesn't") as caught:
        load("someone/sums")
    assert not isinstance(caught.value, TransientError)
