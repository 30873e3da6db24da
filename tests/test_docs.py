"""The README against the code: its dictionary, queries, parameters, picture, tables and tree are those of the project.

`python -m tests.test_docs` writes the data dictionary into README.md anew.
"""

from __future__ import annotations

import pkgutil
import re
import typing
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ruamel.yaml import YAML

from pipeline.audit.registry import QUESTIONS as NAMED
from pipeline.data_dictionary import data_dictionary
from pipeline.errors import BadInput, TransientError
from pipeline.params import Section, TrainingParams, check_params
from pipeline.presets import PRESETS
from pipeline.rewards import terms
from pipeline.rewards.completion import Completion
from pipeline.rewards.registry import load_terms
from pipeline.rewards.verifiers.extraction import EXTRACTIONS
from pipeline.tables import Outcome
from stages.runner import BUG_EXIT_CODE, INTERRUPTED_EXIT_CODE, USAGE_EXIT_CODE
from tests.iteration_sample import sample_frames, write_iteration
from tests.stage_runs import PARAMS_FILE, ROOT

DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "data/sources/README.md")
BEGIN, END = "<!-- data dictionary: begin -->\n", "<!-- data dictionary: end -->"
EITHER_OR = ("BaseModelParams", "PromptSource")
"""Sections whose keys exclude each other, so that no single example has them all."""
QUERIES = {
    "by_operator": ["operator", "n_completions", "pass_rate"],
}


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def section(heading: str) -> str:
    """The text of README.md under `heading`, such as `## The methods`, up to the next one of its level or above."""
    level = heading.index(" ")
    pattern = rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{level}}} |\Z)"
    found = re.search(pattern, text_of("README.md"), re.MULTILINE | re.DOTALL)
    assert found, f"README.md has no heading {heading!r}"
    return found[1]


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def first_column(markdown: str) -> list[str]:
    """The first cells of the rows of the tables in `markdown`, without those of the headers."""
    cells = [line.split("|")[1].strip(" `") for line in markdown.splitlines() if line.startswith("|")]
    rulers = {place for place, cell in enumerate(cells) if cell == "---"}
    return [cell for place, cell in enumerate(cells) if place not in rulers and place + 1 not in rulers]


def load_yaml(text: str) -> Any:
    """What `text` holds, read as DVC reads params.yaml."""
    return YAML(typ="safe").load(text)


def pipeline_stages() -> dict[str, Any]:
    stages: dict[str, Any] = load_yaml(text_of("dvc.yaml"))["stages"]
    return stages


def with_dictionary(readme: str) -> str:
    """`readme` with the data dictionary of the code between its markers."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{data_dictionary()}{END}{after}"


def test_the_data_dictionary_is_current() -> None:
    readme = text_of("README.md")
    assert BEGIN in readme
    assert readme == with_dictionary(readme), "run `python -m tests.test_docs`"


# Queries --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, pl.DataFrame]:
    """What the README's queries give on a made-up iteration, whose prompts are sums and products in turn."""
    frames = sample_frames()
    operator = pl.when(pl.int_range(pl.len()) % 2 == 0).then(pl.lit("+")).otherwise(pl.lit("*"))
    metadata = pl.concat_str(pl.lit('{"entry": {"metadata": {"expression": "1 '), operator, pl.lit(' -2"}}}'))
    frames["prompts"] = frames["prompts"].with_columns(metadata=metadata)
    write_iteration(tmp_path, frames)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    for query in code_blocks(section("## Ask the tables"), "python"):
        exec(query, found)
    return {name: found[name] for name in QUERIES}


def test_the_queries_answer_their_questions(answers: dict[str, pl.DataFrame]) -> None:
    assert {name: frame.columns for name, frame in answers.items()} == QUERIES
    # Groups 0, 2, ... 14 are sums: 3 mixed, 4 wrong and 1 correct. Of the others, one has a single verdict.
    assert answers["by_operator"].rows() == [("*", 32, pytest.approx(10 / 29)), ("+", 32, pytest.approx(10 / 32))]


def test_each_query_is_followed_by_its_output() -> None:
    outputs = code_blocks(section("## Ask the tables"), "text")
    headers = [next(line for line in output.splitlines() if line.startswith("│")) for output in outputs]
    assert [re.findall(r"\w+", header) for header in headers] == [*QUERIES.values()]


# Parameters -----------------------------------------------------------------------------------------------------------


def keys_with_defaults(given: Section, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Place, value and default of each key of `given` that has a default; fails where a key is left out."""
    is_example = type(given).__name__ in EITHER_OR
    for name, field in type(given).model_fields.items():
        here, value = f"{place}.{name}".lstrip("."), getattr(given, name)
        assert is_example or name in given.model_fields_set, f"{here} is not there"
        for inner in sections_in(value):
            yield from keys_with_defaults(inner, here)
        if not (is_example or field.is_required() or isinstance(value, Section)):
            yield here, value, field.get_default(call_default_factory=True)


def sections_in(value: Any) -> Iterable[Section]:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, Section)]


def test_every_parameter_is_shown_with_its_default() -> None:
    (example,) = code_blocks(section("## Every parameter"), "yaml")
    shown = list(keys_with_defaults(check_params(load_yaml(example))))
    assert len(shown) > 40
    for place, value, default in shown:
        assert value == default, place
    for name in ("path", "hub", "revision", "file", "dataset", "split", "prompt", "answer", "metadata", "verifier"):
        assert f"{name}: " in section("## Your own model, prompts and reward")


def test_the_table_of_presets_has_their_values() -> None:
    header, _, *rows = (line for line in section("### Presets").splitlines() if line.startswith("|"))
    keys = [cell.strip() for cell in header.split("|")[3:-2]]
    for row in rows:
        name, _, *values, besides = (cell.strip(" `") for cell in row.split("|")[1:-1])
        shown = {key: value for key, value in zip(keys, values, strict=True) if value}
        shown |= dict([besides.split(": ")] if besides else [])
        expected = {**PRESETS[name]["normalize"], **PRESETS[name]["training"]}
        assert {key: load_yaml(value) for key, value in shown.items()} == expected


@pytest.mark.parametrize("document", DOCUMENTS)
def test_examples_of_params_are_valid(document: str) -> None:
    params = load_yaml(PARAMS_FILE.read_text(encoding="utf-8"))
    for example in code_blocks(text_of(document), "yaml"):
        load_terms(check_params({**params, **load_yaml(example)}, document).score.terms)


def test_the_example_of_a_term_is_the_one_that_is_there() -> None:
    examples = code_blocks(section("### Reward"), "python")
    assert examples == [text_of("pipeline/rewards/user/brevity.py"), text_of("tests/rewards/user/test_brevity.py")]


def test_the_table_of_terms_names_those_there_are() -> None:
    (table, *_) = section("### Reward").split("```yaml")
    kinds = [module.name for module in pkgutil.iter_modules(terms.__path__)]
    assert sorted(first_column(table)) == sorted(kinds)


def test_the_table_of_fields_names_those_that_a_term_sees() -> None:
    _, rows = section("### Reward").split("| field | what it is |")
    named = [
        name
        for line in rows.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    ]
    assert named == [field.name for field in fields(Completion)]


# Picture, tables and tree ---------------------------------------------------------------------------------------------


def test_the_picture_shows_edges_that_exist() -> None:
    stages = pipeline_stages()
    (picture,) = code_blocks(text_of("README.md"), "mermaid")
    edges = re.findall(r"^  (\w+) (-->|-\.->)\|(.+)\| (\w+)$", picture, re.MULTILINE)
    assert {name for source, _, _, target in edges for name in (source, target)} == {*stages, "next"}
    for source, _, labels, target in edges:
        for path in (f"data/{label}" for label in labels.split(", ")):
            assert path in stages[source]["outs"]
            assert target == "next" or path in stages[target]["deps"]


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("## The iteration", [*pipeline_stages()]),
        ("## What it costs", [*pipeline_stages(), "all"]),
        ("### Verifiers", [*EXTRACTIONS]),
        ("### Which groups are kept", [*Outcome.categories]),
        ("### Presets", [*PRESETS]),
        ("### Losses", [*typing.get_args(TrainingParams.model_fields["loss"].annotation)]),
        (
            "## When something is wrong",
            [
                str(code)
                for code in (
                    0,
                    BadInput.exit_code,
                    USAGE_EXIT_CODE,
                    BUG_EXIT_CODE,
                    TransientError.exit_code,
                    INTERRUPTED_EXIT_CODE,
                )
            ],
        ),
    ],
)
def test_a_table_names_what_there_is(heading: str, expected: list[str]) -> None:
    assert sorted(first_column(section(heading))) == sorted(expected)


def test_the_table_of_questions_is_that_of_the_registry() -> None:
    rows = [line.split("|")[1:3] for line in section("## Audit").splitlines() if line.startswith("| `")]
    shown = [(name.strip(" `"), asks.strip()) for name, asks in rows]
    assert shown == [(question.name, question.asks) for question in NAMED.values()]


def test_the_tree_names_what_there_is() -> None:
    (tree,) = code_blocks(section("## What is where"), "text")
    named: set[Path] = set()
    folder = Path()
    for line in tree.splitlines():
        name = line.split()[0]
        path = folder / name if line.startswith(" ") else Path(name)
        folder = path if not line.startswith(" ") else folder
        assert (ROOT / path).exists(), path
        named.add(path)
    modules = {path.relative_to(ROOT) for path in (ROOT / "pipeline").iterdir() if not path.name.startswith("__")}
    assert modules <= named


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    text = text_of(document)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        elif "://" not in target:
            assert ((ROOT / document).parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_are_named_exist(document: str) -> None:
    for name in re.findall(r"`((?:pipeline|stages|tests)/[\w/]+(?:\.py)?)`", text_of(document)):
        assert (ROOT / name).exists(), name


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(with_dictionary(readme.read_text(encoding="utf-8")), encoding="utf-8")
