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
from pipeline.rewards.registry import Term, load_terms
from pipeline.rewards.term_values import apply_term
from pipeline.rewards.terms import correct, format
from pipeline.rewards.user import brevity
from pipeline.rewards.workers import Workers, start_workers
from tests.rewards import user_terms
from tests.rewards.completions import completion
from tests.rewards.user_terms import obedient


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
    told = ["", "raise", "nan", "inf", "huge", "text", "none", "true", "die", "leave", "sleep", "on"]
    wrong = completion("off", is_correct=False)
    values = apply_term(term, [*(completion(text) for text in told), wrong], workers)
    assert values == [
        (1.0, None),
        (None, "mine: ValueError: as told"),
        (None, "mine: ValueError: it returned nan, which is not finite"),
        (None, "mine: ValueError: it returned -inf, which is not finite"),
        (None, "mine: OverflowError: it returned a number beyond floating point"),
        (None, "mine: TypeError: it returned '1.0', which is no number"),
        (None, "mine: it can't judge this completion"),
        (1.0, None),
        (None, "mine: crash: its worker process ended with exit code -6"),
        (None, "mine: crash: its worker process ended with exit code 0"),
        (None, "mine: timeout: it took more than 1 s"),
        (1.0, None),
        (0.5, None),
    ]


@pytest.mark.usefixtures("with_test_terms")
def test_a_term_may_look_at_a_group_or_at_all_completions(workers: Workers) -> None:
    texts = {"g0": ["a", "abc"], "g1": ["", ""], "g2": ["abcd"]}
    rows = [completion(text, group_id=group) for group, group_texts in texts.items() for text in group_texts]
    share, rank, short = load(share={}, rank={}, short={})
    assert [term.scope for term in (share, rank, short)] == ["group", "batch", "groups"]
    nothing = (None, "share: it can't judge this completion")
    assert apply_term(share, rows, workers) == [(0.25, None), (0.75, None), nothing, nothing, (1.0, None)]
    # of 1, 3, 0, 0 and 4 tokens
    assert apply_term(rank, rows, workers) == [(2.0, None), (3.0, None), (0.0, None), (0.0, None), (4.0, None)]
    missing = "short: ValueError: it returned 4 values for 5 completions"
    assert apply_term(short, rows, workers) == [(None, missing)] * 5
    assert [apply_term(term, [], workers) for term in (share, rank, short)] == [[], [], []]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown kind": (
        {"corect": {}},
        r"params\.yaml: score\.terms\.corect: there is no kind of term 'corect'\. Built in are correct, .*; in "
        r"pipeline/rewards/user/ there are brevity; a term of your own is a module there",
    ),
    "unknown kind under another name": (
        {"mine": {"kind": "os.path"}},
        r"score\.terms\.mine\.kind: 'os\.path' is a function from elsewhere, which DVC doesn't watch",
    ),
    "a file of one's own": (
        {"mine": {"kind": "my_rewards.py:brief"}},
        r"kind: 'my_rewards\.py:brief' is a function from elsewhere, which DVC doesn't watch: an edit of it would not "
        r"score again\. Put it into a module in pipeline/rewards/user/, and give that module's name",
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
        ("import sys; sys.exit()", r"broken\.py can't be imported: SystemExit: \. Mend"),
        ("import nowhere", r"broken\.py can't be imported: ModuleNotFoundError: No module named 'nowhere'\. Mend"),
        (
            "def score(completion, params): ...\ndef score_group(completions, params): ...",
            r"broken\.py has `score` and `score_group`, and a term is one function\. Make two modules of it",
        ),
        (
            "class Params: ...\ndef score(completion, params): ...",
            r"broken\.py has a `Params` that is no Section\. Derive it from `pipeline\.params\.Section`",
        ),
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
