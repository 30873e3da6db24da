"""A model run on rows, packed and padded, against one plain forward per row."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.errors import BadInput
from pipeline.params import LoraParams
from pipeline.policy import Model, create_adapter, load_model
from pipeline.sampling.stopping import Stops
from pipeline.training import forward
from pipeline.training.batching import Step, TrainingRow, completion_mask, pad_rows
from pipeline.training.forward import (
    TokenCounts,
    check_head,
    count_tokens,
    head_of,
    is_packing,
    prepare_model,
    row_statistics,
)
from pipeline.training.grouped_attention import GROUPED_ATTENTION
from pipeline.training.logprobs import Head, TokenStatistics, token_statistics
from tests.tiny_updates import CPU, TEMPERATURE, VOCABULARY, load_trainable, random_rows, ready

TOLERANCE = 2e-5
"""In float32, with logits of up to about 20."""

pytestmark = pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")  # PEFT, of merging

in_float32 = pytest.mark.usefixtures("in_float32")


@pytest.fixture
def plain(policy: Path, base: Path) -> Model:
    """The policy as it is loaded."""
    return load_model(policy, base, CPU, torch.float32, is_trainable=True)


@pytest.fixture
def model(layout: str, plain: Model) -> Model:
    """The same, made ready for rows in this layout."""
    model = ready(copy.deepcopy(plain))
    assert is_packing(model) is (layout == "packed")
    return model


def plain_logprobs(model: Model, row: TrainingRow, ends: Sequence[int] = (), n_without: int = 0) -> torch.Tensor:
    """[C] in float64: the whole sequence alone, without mask, padding or positions.

    Among the first `n_without` tokens there is none of `ends`.
    """
    ids = torch.tensor([row.prompt_token_ids + row.completion_token_ids])
    logits: torch.Tensor = model(input_ids=ids).logits[0, len(row.prompt_token_ids) - 1 : -1]
    logits[:n_without, list(ends)] = -torch.inf
    places = torch.arange(len(row.completion_token_ids))
    return (logits.double() / TEMPERATURE).log_softmax(dim=-1)[places, row.completion_token_ids]


def statistics(model: Model, rows: list[TrainingRow]) -> TokenStatistics:
    return row_statistics(model, rows, TEMPERATURE)


def distances_of_gradients(model: Model, plain: Model, rows: list[TrainingRow]) -> dict[str, float]:
    """Of each trainable parameter, in units of the norm of the gradient through plain forwards."""
    mask = completion_mask(rows, CPU)
    weights = torch.randn(mask.shape, generator=torch.Generator().manual_seed(0))[mask]
    ours = statistics(model, rows).logprobs[mask]
    theirs = torch.cat([plain_logprobs(plain, row) for row in rows])
    torch.autograd.backward([(ours * weights).sum(), (theirs * weights).sum()])
    pairs = zip(model.named_parameters(), plain.parameters(), strict=True)
    return {
        name: ((ours.grad - theirs.grad).norm() / theirs.grad.norm()).item()
        for (name, ours), theirs in pairs
        if ours.requires_grad
    }


# --- values and gradients


@in_float32
def test_a_plain_forward_of_each_row_alone_agrees(model: Model, plain: Model) -> None:
    rows = random_rows(n_groups=3, group_size=3)
    found = statistics(model, rows).logprobs
    assert found.shape == (9, max(len(row.completion_token_ids) for row in rows))
    for i, row in enumerate(rows):
        n = len(row.completion_token_ids)
        assert torch.allclose(found[i, :n].double(), plain_logprobs(plain, row), atol=TOLERANCE)
        assert not found[i, n:].any()


@in_float32
def test_end_tokens_are_left_out_where_they_could_not_be_drawn(model: Model, plain: Model) -> None:
    rows = random_rows(n_groups=3, group_size=3)
    ends = sorted(set(range(VOCABULARY)) - {token for row in rows for token in row.completion_token_ids})[:3]
    found = row_statistics(model, rows, TEMPERATURE, stops=Stops(frozenset(ends), (), 2, 8)).logprobs
    for i, row in enumerate(rows):
        n = len(row.completion_token_ids)
        assert torch.allclose(found[i, :n].double(), plain_logprobs(plain, row, ends, 2), atol=TOLERANCE)


@in_float32
def test_gradients_are_those_of_plain_forwards(model: Model, plain: Model) -> None:
    found = distances_of_gradients(model, plain, random_rows(n_groups=2, group_size=3))
    assert found
    assert max(found.values()) <= 1e-4


@in_float32
def test_packed_is_padded(plain: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(n_groups=4, group_size=4, seed=3)
    packed = statistics(ready(copy.deepcopy(plain)), rows)
    monkeypatch.setattr(forward, "supports_grouped_attention", lambda _: False)
    padded = statistics(ready(plain), rows)
    for ours, theirs in zip(packed, padded, strict=True):
        assert ours.shape == theirs.shape
        assert torch.allclose(ours, theirs, atol=TOLERANCE)


@in_float32
def test_a_completion_does_not_depend_on_its_mates(model: Model) -> None:
    row = random_rows(n_groups=1, group_size=1)[0]
    n = len(row.completion_token_ids)
    mates = [
        *random_rows(n_groups=2, group_size=3, seed=1)[3:],
        replace(row, completion_id="twin", completion_token_ids=[9] * 11, sampling_logprobs=[-1.0] * 11),
        replace(row, completion_id="other", group_id="other", prompt_token_ids=[4] * 17),
    ]
    alone = statistics(model, [row])
    for place in range(len(mates) + 1):
        together = statistics(model, [*mates[:place], row, *mates[place:]])
        for ours, theirs in zip(together, alone, strict=True):
            assert torch.allclose(ours[place, :n], theirs[0, :n], atol=TOLERANCE)


@in_float32
def test_the_ids_at_padding_change_nothing(plain: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "supports_grouped_attention", lambda _: False)
    model, rows = ready(plain), random_rows(n_groups=4, group_size=2)
    expected = statistics(model, rows)

    def pad_with_noise(rows: list[TrainingRow], device: torch.device) -> Any:
        padded = pad_rows(rows, device)
        noise = torch.randint(VOCABULARY, padded.input_ids.shape, generator=torch.Generator().manual_seed(0))
        is_padding = padded.attention_mask == 0
        assert is_padding[:, 0].any(), "some on the left"
        assert is_padding[:, -1].any(), "and some on the right"
        noisy = torch.where(is_padding, noise, padded.input_ids)
        return replace(padded, input_ids=noisy, completion_ids=noisy[:, -padded.completion_ids.shape[1] :])

    monkeypatch.setattr(forward, "pad_rows", pad_with_noise)
    for ours, theirs in zip(statistics(model, rows), expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_padding_is_finite(model: Model) -> None:
    """A gradient of 0 times an infinite value would be NaN."""
    found = row_statistics(model, random_rows(n_groups=3, group_size=3), TEMPERATURE, "trained")
    assert torch.isfinite(torch.stack(found)).all()
    torch.autograd.backward((found.logprobs + found.entropy).sum())
    assert all(torch.isfinite(value.grad).all() for value in model.parameters() if value.requires_grad)


# --- precision and cost


def test_the_head_sees_what_predicts_a_completion_token_alone(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(n_groups=2)
    seen: list[tuple[torch.Size, torch.dtype]] = []

    def note(hidden: torch.Tensor, *args: Any) -> TokenStatistics:
        seen.append((hidden.shape, hidden.dtype))
        return token_statistics(hidden, *args)

    monkeypatch.setattr(forward, "token_statistics", note)
    heads = []
    model.get_output_embeddings().register_forward_hook(lambda *_: heads.append("ran over all hidden states"))
    statistics(model, rows)
    assert [shape for shape, _ in seen] == [(sum(len(row.completion_token_ids) for row in rows), 32)]
    assert heads == []


def test_float32_masters_run_in_bfloat16(model: Model) -> None:
    assert {value.dtype for value in model.parameters() if value.requires_grad} == {torch.float32}
    types: list[torch.dtype] = []
    products = [module for module in model.modules() if type(module) is torch.nn.Linear]
    for module in products:
        module.register_forward_hook(lambda _module, _inputs, out: types.append(out.dtype))
    found = statistics(model, random_rows(n_groups=1))
    assert set(types) == {torch.bfloat16}
    assert found.logprobs.dtype == found.entropy.dtype == torch.float32
    torch.autograd.backward(found.logprobs.sum())
    assert {value.grad.dtype for value in model.parameters() if value.requires_grad} == {torch.float32}


def test_bfloat16_is_near_float32(model: Model, plain: Model) -> None:
    rows = random_rows(n_groups=2)
    found = statistics(model, rows).logprobs
    expected = torch.cat([plain_logprobs(plain, row) for row in rows])
    off = (found[completion_mask(rows, CPU)] - expected).norm() / expected.norm()
    assert 1e-5 < off < 0.05


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_of_either_precision_are_packed(dtype: torch.dtype, policy: Path, base: Path) -> None:
    """Adapters are trained on a base model in bfloat16."""
    assert is_packing(load_trainable(policy, base, dtype))


# --- heads


@pytest.fixture
def head_adapter(base: Path, tmp_path: Path) -> Model:
    """A model with an adapter that changes the head, too, as it is loaded."""
    create_adapter(base, LoraParams(rank=4, target_modules=["q_proj", "lm_head"]), 7, tmp_path / "adapter")
    model = load_model(tmp_path / "adapter", base, CPU, torch.float32, is_trainable=True)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1, generator=generator)
    return model


@in_float32
@pytest.mark.usefixtures("layout")
def test_an_adapter_on_the_head_counts(head_adapter: Model) -> None:
    plain, model = head_adapter, ready(copy.deepcopy(head_adapter))
    rows = random_rows(n_groups=2, group_size=3)
    expected = torch.cat([plain_logprobs(plain, row) for row in rows])
    found = statistics(model, rows).logprobs[completion_mask(rows, CPU)]
    assert torch.allclose(found.double(), expected, atol=TOLERANCE)
    distances = distances_of_gradients(model, plain, rows)
    assert len(distances) == 6, "two matrices of each layer's queries and of the head"
    assert max(distances.values()) <= 1e-4


@in_float32
@pytest.mark.usefixtures("layout")
def test_an_adapter_that_is_switched_off_is_off_the_head_too(head_adapter: Model, base: Path) -> None:
    rows = random_rows(n_groups=2)
    expected = statistics(load_trainable(base, base), rows).logprobs
    model = ready(head_adapter)
    with model.disable_adapter():
        assert torch.allclose(statistics(model, rows).logprobs, expected, atol=TOLERANCE)
    assert not torch.allclose(statistics(model, rows).logprobs, expected, atol=0.1)


@pytest.mark.parametrize("factor", [0.5, 1.1, -1.0])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_logits_that_are_changed_in_another_way_are_refused(factor: float, scale: float, plain: Model) -> None:
    plain.get_output_embeddings().weight.data.mul_(scale)  # whatever their size
    check_head(plain)
    plain.get_output_embeddings().register_forward_hook(lambda _module, _inputs, logits: logits * factor)
    with pytest.raises(BadInput, match="of type llama makes its logits in a way of its own"):
        prepare_model(plain)


def test_logits_of_another_vocabulary_are_refused(plain: Model) -> None:
    plain.get_output_embeddings().register_forward_hook(lambda _module, _inputs, logits: logits[..., :-1])
    with pytest.raises(BadInput, match="in a way of its own"):
        check_head(plain)


def test_a_model_without_a_head_is_refused(plain: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = plain.get_base_model() if hasattr(plain, "peft_config") else plain
    monkeypatch.setattr(type(whole), "get_output_embeddings", lambda _: None)
    with pytest.raises(BadInput, match="has no head"):
        prepare_model(plain)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (1.0, None)),
        ({"logit_scale": 0.25}, (0.25, None)),
        ({"logits_scaling": 4.0}, (0.25, None)),
        ({"final_logit_softcapping": 30.0}, (1.0, 30.0)),
        ({"logit_scale": None, "final_logit_softcapping": None}, (1.0, None)),
    ],
)
def test_a_config_says_how_logits_are_made(settings: dict[str, Any], expected: tuple[float, Any], base: Path) -> None:
    model = load_model(base, base, CPU, torch.float32)
    for name, value in settings.items():
        setattr(model.config, name, value)
    head = head_of(model)
    assert isinstance(head, Head)
    assert (head.scale, head.cap) == expected
    assert head.weight is model.get_input_embeddings().weight
    assert head.bias is None


# --- what it costs


@pytest.mark.usefixtures("in_float32")
def test_gradient_checkpointing_changes_memory_and_no_bit_of_a_gradient(policy: Path, base: Path) -> None:
    rows = random_rows(n_groups=3)
    found = []
    for is_on in (False, True):
        model = load_model(policy, base, CPU, torch.float32, is_trainable=True)
        prepare_model(model, gradient_checkpointing=is_on)
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        kept: list[int] = []

        def keep(tensor: torch.Tensor, kept: list[int] = kept) -> torch.Tensor:
            kept.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            total = row_statistics(model, rows, TEMPERATURE).logprobs.sum()
        found.append((torch.autograd.grad(total, trainable), sum(kept)))
    (plain, n_plain), (checkpointed, n_checkpointed) = found
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(checkpointed, plain, strict=True))
    assert n_checkpointed < n_plain / 2


def test_tokens_are_counted_as_they_are_run() -> None:
    rows = [
        TrainingRow("a/0", "a", [1, 2, 3], [4, 5], [0.0] * 2, 1.0),
        TrainingRow("a/1", "a", [1, 2, 3], [6, 7, 8, 9], [0.0] * 4, 1.0),
        TrainingRow("b/0", "b", [1], [5], [0.0], 1.0),
    ]
    steps = [Step(0, [[0, 1], [2]]), Step(1, [[0, 1, 2]])]
    # Packed: 3 + 1 + 3 and 1 + 0; then all together; each in 64. Padded: 2 x (3 + 4), of which 12 are real, and
    # 1 x (1 + 1); then 3 x (3 + 4), of which 14 are.
    packing: Any = SimpleNamespace(config=SimpleNamespace(_attn_implementation=GROUPED_ATTENTION))
    padding: Any = SimpleNamespace(config=SimpleNamespace(_attn_implementation="sdpa"))
    assert count_tokens(packing, rows, steps) == TokenCounts(n_run=3 * 64, n_padding=3 * 64 - 16, n_predicting=14)
    assert count_tokens(padding, rows, steps) == TokenCounts(n_run=37, n_padding=2 + 7, n_predicting=14)
