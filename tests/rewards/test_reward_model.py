"""The term `reward_model`: a tiny classifier of random weights, alone and in batches, and models that can't be one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import LlamaConfig, LlamaForSequenceClassification

from pipeline.errors import BadInput
from pipeline.params import TermParams
from pipeline.rewards.registry import load_terms
from pipeline.rewards.term_values import apply_term
from pipeline.rewards.terms.reward_model import Params, score_groups
from tests.rewards.completions import completion
from tests.tiny_model import build_tiny_model

TEXTS = ["7", "it is 7", "", "a much longer completion, so that the others are padded", "7"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_classifier(tmp_path_factory.mktemp("reward_model"), num_labels=1)


def build_classifier(folder: Path, num_labels: int) -> Path:
    build_tiny_model(folder)  # for its tokenizer
    config = LlamaConfig.from_pretrained(folder, num_labels=num_labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForSequenceClassification(config).save_pretrained(folder)
    return folder


def params(folder: Path, **changes: Any) -> Params:
    return Params.model_validate({"model": str(folder), "device": "cpu", **changes})


def test_the_logit_is_that_of_the_model_alone(folder: Path) -> None:
    (value,) = score_groups([completion("it is 7")], params(folder))
    model = LlamaForSequenceClassification.from_pretrained(folder)
    # The tokenizer has a token per character, and the chat template three special ones.
    text = "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\nit is 7<|im_end|>\n"
    characters = text.replace("<|im_start|>", "\x01").replace("<|im_end|>", "\x02")
    printable = [*(chr(code) for code in range(32, 127)), "\n"]
    ids = [ord(each) if each in "\x01\x02" else 3 + printable.index(each) for each in characters]
    assert value == pytest.approx(model(torch.tensor([ids])).logits.item(), abs=1e-5)


def test_batches_change_nothing_and_order_is_kept(folder: Path) -> None:
    rows = [completion(text) for text in TEXTS]
    alone = score_groups(rows, params(folder, batch_completions=1))
    assert score_groups(rows, params(folder, batch_completions=4)) == [pytest.approx(each, abs=1e-5) for each in alone]
    assert alone[0] == alone[4]
    assert len({*alone}) == 4


def test_a_chat_that_is_too_long_has_no_score(folder: Path) -> None:
    values = score_groups([completion("7"), completion("7" * 100)], params(folder, max_tokens=60))
    assert [value is None for value in values] == [False, True]


def test_it_is_a_term_of_many_groups(folder: Path) -> None:
    settings = {"weight": 1.0, "params": {"model": str(folder), "max_tokens": 60}}
    (term,) = load_terms({"reward_model": TermParams.model_validate(settings)})
    (value, error), (none, reason) = apply_term(term, [completion("7"), completion("7" * 100)], None)
    assert isinstance(value, float)
    assert (error, none) == (None, None)
    assert reason == "reward_model: it can't judge this completion"


def test_models_that_are_none_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"'nowhere/at-all' is no folder; the id of a hub's repository goes with"):
        Params(model="nowhere/at-all")
    with pytest.raises(BadInput, match=r"it can't be loaded as a sequence classifier \("):
        score_groups([completion()], params(tmp_path))
    build_tiny_model(tmp_path / "language_model")
    with pytest.raises(BadInput, match=r"its weights have no score\.weight\. Name a model that was trained to score"):
        score_groups([completion()], params(tmp_path / "language_model"))
    two = build_classifier(tmp_path / "two", num_labels=2)
    with pytest.raises(BadInput, match="it has 2 outputs, and a reward model has one"):
        score_groups([completion()], params(two))
