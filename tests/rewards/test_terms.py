"""Terms: how they are found and checked, and what each gives."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipeline.errors import BadInput
from pipeline.params import TermParams
from pipeline.rewards import registry, term_values
from pipeline.rewards.completion import Completion
from pipeline.rewards.registry import Term, load_terms
from pipeline.rewards.term_values import apply_term
from pipeline.rewards.terms import correct, format
from pipeline.rewards.user import brevity
from pipeline.rewards.workers import Workers, start_workers
from tests.rewards import user_terms
from tests.rewards.user_terms import obedient


def completion(text: str = "12", **changes: Any) -> Completion:
    fields: dict[str, Any] = {
        "completion_id": "c0",
        "group_id": "g0",
        "prompt_id": "p0",
        "source": "file",
        "messages": ({"role": "user", "content": "?"},),
        "answer": "12",
        "metadata": None,
        "completion_text": text,
        "completion_token_ids": range(len(text)),
        "finish_reason": "stop",
        "is_correct": True,
        "partial_score": 1.0,
        "extracted_answer": text,
    }
    return Completion(**{**fields, **changes})


def load(**params: dict[str, Any]) -> list[Term]:
    return load_terms({name: TermParams.model_validate({"weight": 1.0, **each}) for name, each in params.items()})


@pytest.fixture
def with_test_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "user", user_terms)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with start_workers(2, [obedient.__name__, term_values.__name__], []) as started:
        yield started


def test_correct() -> None:
    plain, partial = correct.Params(), correct.Params(partial_credit=True)
    half = completion(is_correct=False, partial_score=0.5)
    unjudged = completion(is_correct=None, partial_score=None)
    assert [correct.score(each, plain) for each in (completion(), half, unjudged)] == [1.0, 0.0, None]
    assert [correct.score(each, partial) for each in (completion(), half, unjudged)] == [1.0, 0.5, None]


def test_format() -> None:
    digits = format.Params(pattern=r"-?\d+")
    assert [format.score(completion(text), digits) for text in ("-5", "it is -5", "")] == [1.0, 0.0, 0.0]
    anywhere = format.Params(pattern=r"-?\d+", full_match=False)
    assert [format.score(completion(text), anywhere) for text in ("-5", "it is -5", "")] == [1.0, 1.0, 0.0]


def test_format_stops_a_catastrophic_pattern() -> None:
    (term,) = load(format={"params": {"pattern": "(a|aa)+b"}})
    fine, hard = completion("aaab"), completion("a" * 60 + "cb")  # 60 letters fall into ones and twos in 10^12 ways
    (value, error), (none, reason) = apply_term(term, [fine, hard], None)
    assert (value, error, none) == (1.0, None, None)
    assert reason == "format: TimeoutError: the pattern took more than 1 s on this text"


def test_brevity() -> None:
    params = brevity.Params(max_characters=10)
    # 1 - 4/10, 1 - 10/10, and 1 - 15/10 is below 0
    for text, expected in (("", 1.0), ("abcd", 0.6), ("a" * 10, 0.0), ("a" * 15, 0.0)):
        assert brevity.score(completion(text), params) == pytest.approx(expected)
    assert brevity.score(completion(finish_reason="length"), params) is None


def test_terms_are_found_by_kind() -> None:
    found = load(correct={}, terse={"kind": "brevity", "weight": 0.5, "params": {"max_characters": 3}})
    assert [(term.name, term.settings.weight, term.runs_in_worker, term.needs_verdict) for term in found] == [
        ("correct", 1.0, False, True),
        ("terse", 0.5, True, False),
    ]
    assert found[1].params == brevity.Params(max_characters=3)
    assert found[0].module == "pipeline.rewards.terms.correct"


@pytest.mark.usefixtures("with_test_terms")
def test_a_term_without_params_takes_none(workers: Workers) -> None:
    (term,) = load(length={})
    assert apply_term(term, [completion("abc"), completion("")], workers) == [(3.0, None), (0.0, None)]
    with pytest.raises(
        BadInput, match=r"score\.terms\.length\.params\.x: the term doesn't take this key\. It takes no"
    ):
        load(length={"params": {"x": 1}})


@pytest.mark.usefixtures("with_test_terms")
def test_a_users_term_that_fails_costs_its_own_completion(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(term_values, "USER_TIME_LIMIT_SECONDS", 1.0)
    (term,) = load(mine={"kind": "obedient", "params": {"factor": 0.5}})
    told = ["", "raise", "nan", "inf", "text", "none", "true", "die", "sleep", "on"]
    wrong = completion("off", is_correct=False)
    values = apply_term(term, [*(completion(text) for text in told), wrong], workers)
    assert values == [
        (1.0, None),
        (None, "mine: ValueError: as told"),
        (None, "mine: ValueError: it returned nan, which is not finite"),
        (None, "mine: ValueError: it returned -inf, which is not finite"),
        (None, "mine: TypeError: it returned '1.0', which is no number"),
        (None, "mine: it can't judge this completion"),
        (1.0, None),
        (None, "mine: crash: its worker process ended with exit code -6"),
        (None, "mine: timeout: it took more than 1 s"),
        (1.0, None),
        (0.5, None),
    ]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown kind": (
        {"corect": {}},
        r"params\.yaml: score\.terms\.corect: there is no kind of term 'corect'\. Built in are correct, format; in "
        r"pipeline/rewards/user/ there are brevity; a term of your own is a module there",
    ),
    "unknown kind under another name": (
        {"mine": {"kind": "os.path"}},
        r"score\.terms\.mine\.kind: 'os\.path' is a function from elsewhere, which DVC doesn't watch",
    ),
    "unknown param": (
        {"correct": {"params": {"partial": True}}},
        r"score\.terms\.correct\.params\.partial: the term doesn't take this key\. It takes partial_credit\.",
    ),
    "missing param": ({"format": {}}, r"score\.terms\.format\.params\.pattern: it is missing\. It takes pattern, full"),
    "wrong type": (
        {"correct": {"params": {"partial_credit": "yes"}}},
        r"score\.terms\.correct\.params\.partial_credit: 'yes': Input should be a valid boolean",
    ),
    "no regular expression": (
        {"format": {"params": {"pattern": "(a"}}},
        r"score\.terms\.format\.params\.pattern: '\(a': it is no regular expression \(missing \)",
    ),
    "param out of range": (
        {"brevity": {"params": {"max_characters": 0}}},
        r"score\.terms\.brevity\.params\.max_characters: 0: Input should be greater than 0",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_params_name_their_key(name: str) -> None:
    params, message = BAD[name]
    with pytest.raises(BadInput, match=message):
        load(**params)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import nowhere", r"broken\.py can't be imported: ModuleNotFoundError: No module named 'nowhere'\. Mend"),
        ("def scores(): ...", r"broken\.py has none of the functions `score`"),
    ],
)
def test_a_users_module_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    package = tmp_path / "made_up_terms"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "broken.py").write_text(source)
    (package / "format.py").write_text("def score(completion, params): return 1.0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "user", _imported("made_up_terms"))
    for name in ("made_up_terms", "made_up_terms.broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(BadInput, match=r"score\.terms\.broken: made_up_terms/" + message):
        load(broken={})
    with pytest.raises(BadInput, match=r"the kind 'format' is built in and also in pipeline/rewards/user/"):
        load(format={"params": {"pattern": "a"}})


def _imported(name: str) -> ModuleType:
    return importlib.import_module(name)
