"""Log-probabilities and entropies of completion tokens, padded and packed, against one plain forward per row."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from pipeline.policy import Model
from pipeline.training.batching import Batch, TrainingRow, collate
from pipeline.training.logprobs import TokenStatistics, completion_statistics, token_statistics
from pipeline.training.packing import can_pack, pack_rows, packed_statistics
from tests.tiny_updates import CPU, TEMPERATURE, VOCABULARY, load_trainable, random_rows

CASES = {case["name"]: case for case in json.loads((Path(__file__).parents[1] / "golden" / "loss.json").read_text())}
TOLERANCE = 2e-5
"""In float32, with logits of up to about 20."""


@pytest.fixture
def model(policy: Path, base: Path) -> Model:
    return load_trainable(policy, base)


def plain_logprobs(model: Model, row: TrainingRow) -> torch.Tensor:
    """[C] in float64: the whole sequence alone, without mask, padding or positions."""
    ids = torch.tensor([row.prompt_token_ids + row.completion_token_ids])
    logits: torch.Tensor = model(input_ids=ids).logits[0, len(row.prompt_token_ids) - 1 : -1]
    places = torch.arange(len(row.completion_token_ids))
    return (logits.double() / TEMPERATURE).log_softmax(dim=-1)[places, row.completion_token_ids]


def padded(model: Model, rows: list[TrainingRow]) -> TokenStatistics:
    return completion_statistics(model, collate(rows, CPU), TEMPERATURE)


def packed(model: Model, rows: list[TrainingRow]) -> TokenStatistics:
    return packed_statistics(model, pack_rows(rows, CPU), TEMPERATURE)


LAYOUTS = [pytest.param(padded, id="padded"), pytest.param(packed, id="packed")]


# --- statistics of logits


def test_case_temperature() -> None:
    case = CASES["temperature"]
    logits, token = torch.tensor([case["logits"]]), torch.tensor([case["token"]])
    assert token_statistics(logits, token, case["temperature"]).logprobs.item() == pytest.approx(
        case["logprob"], abs=1e-6
    )


def test_entropy_by_hand() -> None:
    # Probabilities 1/2, 1/4, 1/4: log 2 / 2 + 2 * log 4 / 4 = 1.5 log 2. A uniform distribution over 3: log 3.
    logits = torch.tensor([[0.5, 0.25, 0.25], [1.0, 1.0, 1.0]]).log()
    found = token_statistics(logits, torch.tensor([1, 2]), 1.0)
    assert found.entropy.tolist() == pytest.approx([1.5 * math.log(2), math.log(3)])
    assert found.logprobs.tolist() == pytest.approx([math.log(0.25), -math.log(3)])


def test_entropy_is_that_after_temperature() -> None:
    # Logits log 4 and 0 at temperature 2 are log 2 and 0: probabilities 2/3 and 1/3.
    found = token_statistics(torch.tensor([[math.log(4), 0.0]]), torch.tensor([0]), 2.0)
    assert found.entropy.item() == pytest.approx(-(2 / 3) * math.log(2 / 3) - (1 / 3) * math.log(1 / 3))


def test_float64_agrees() -> None:
    logits = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(0)) * 8
    tokens = torch.randint(50, (3, 4), generator=torch.Generator().manual_seed(1))
    found = token_statistics(logits, tokens, 0.7)
    expected = (logits.double() / 0.7).log_softmax(-1)
    assert torch.allclose(found.logprobs.double(), expected.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), atol=1e-5)
    assert torch.allclose(found.entropy.double(), -(expected.exp() * expected).sum(-1), atol=1e-5)


def test_bfloat16_logits_are_summed_in_float32() -> None:
    logits = torch.zeros(1, 1000, dtype=torch.bfloat16)
    found = token_statistics(logits, torch.tensor([5]), 1.0)
    assert found.logprobs.dtype == found.entropy.dtype == torch.float32
    assert found.logprobs.item() == pytest.approx(-math.log(1000), abs=1e-6)


def test_gradient_of_a_logprob() -> None:
    # Probabilities 2/3 and 1/3: the gradient is (one-hot - probabilities) / temperature; the entropy has none.
    logits = torch.tensor([[2 * math.log(2), 0.0]], requires_grad=True)
    found = token_statistics(logits, torch.tensor([0]), 2.0)
    assert not found.entropy.requires_grad
    (gradient,) = torch.autograd.grad(found.logprobs.sum(), logits)
    assert gradient[0].tolist() == pytest.approx([1 / 6, -1 / 6])


# --- statistics of rows


@pytest.mark.usefixtures("in_float32")
@pytest.mark.parametrize("statistics", LAYOUTS)
def test_a_plain_forward_of_each_row_alone_agrees(statistics: Any, model: Model) -> None:
    rows = random_rows(n_groups=3, group_size=3)
    found = statistics(model, rows)
    for i, row in enumerate(rows):
        ours = found.logprobs[i, : len(row.completion_token_ids)]
        assert torch.allclose(ours.double(), plain_logprobs(model, row), atol=TOLERANCE)


@pytest.mark.usefixtures("in_float32")
def test_packed_is_padded(model: Model) -> None:
    rows = random_rows(n_groups=4, group_size=4, seed=3)
    mask = collate(rows, CPU).completion_mask
    for ours, theirs in zip(packed(model, rows), padded(model, rows), strict=True):
        assert torch.allclose(ours[mask], theirs[mask], atol=TOLERANCE)
        assert ours.shape == theirs.shape


@pytest.mark.usefixtures("in_float32")
@pytest.mark.parametrize("statistics", LAYOUTS)
def test_gradients_are_those_of_plain_forwards(statistics: Any, model: Model) -> None:
    rows = random_rows(n_groups=2, group_size=3)
    mask = collate(rows, CPU).completion_mask
    weights = torch.randn(mask.shape, generator=torch.Generator().manual_seed(0))[mask]
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ours = torch.autograd.grad((statistics(model, rows).logprobs[mask] * weights).sum(), trainable)
    plain = torch.cat([plain_logprobs(model, row) for row in rows])
    theirs = torch.autograd.grad((plain * weights).sum(), trainable)
    for our, their in zip(ours, theirs, strict=True):
        assert (our - their).norm() <= 1e-4 * their.norm()


@pytest.mark.usefixtures("in_float32")
@pytest.mark.parametrize("statistics", LAYOUTS)
def test_a_completion_does_not_depend_on_its_mates(statistics: Any, model: Model) -> None:
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


@pytest.mark.usefixtures("in_float32")
@pytest.mark.parametrize("statistics", LAYOUTS)
def test_learned_positions_begin_at_the_first_token(statistics: Any) -> None:
    """Rotary positions are relative, and would not notice an offset."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=16, n_layer=1, n_head=2, initializer_range=0.5)
    model = GPT2LMHeadModel(config).eval()
    rows = random_rows(n_groups=3, group_size=2)
    found = statistics(model, rows)
    for i, row in enumerate(rows):
        ours = found.logprobs[i, : len(row.completion_token_ids)]
        assert torch.allclose(ours.double(), plain_logprobs(model, row), atol=TOLERANCE)


@pytest.mark.usefixtures("in_float32")
def test_the_ids_at_padding_change_nothing(model: Model) -> None:
    rows = random_rows(n_groups=4, group_size=2)
    batch = collate(rows, CPU)
    noise = torch.randint(VOCABULARY, batch.input_ids.shape, generator=torch.Generator().manual_seed(0))
    is_padding = batch.attention_mask == 0
    assert is_padding[:, 0].any(), "some on the left"
    assert is_padding[:, -1].any(), "and some on the right"
    n_prompt = batch.input_ids.shape[1] - batch.completion_ids.shape[1]
    noisy_ids = torch.where(is_padding, noise, batch.input_ids)
    noisy = replace(batch, input_ids=noisy_ids, completion_ids=noisy_ids[:, n_prompt:])
    for ours, theirs in zip(*(completion_statistics(model, b, TEMPERATURE) for b in (noisy, batch)), strict=True):
        assert torch.allclose(ours[batch.completion_mask], theirs[batch.completion_mask], atol=1e-6)


@pytest.mark.usefixtures("in_float32")
def test_wider_padding_changes_nothing(model: Model) -> None:
    batch = collate(random_rows(n_groups=2), CPU)

    def widen(values: torch.Tensor, left: int, right: int) -> torch.Tensor:
        return torch.nn.functional.pad(values, (left, right))

    wide = Batch(
        input_ids=widen(batch.input_ids, 5, 3),
        attention_mask=widen(batch.attention_mask, 5, 3),
        position_ids=widen(batch.position_ids, 5, 3),
        completion_ids=widen(batch.completion_ids, 0, 3),
        completion_mask=widen(batch.completion_mask, 0, 3),
        sampling_logprobs=widen(batch.sampling_logprobs, 0, 3),
        advantages=batch.advantages,
    )
    ours, theirs = (completion_statistics(model, b, TEMPERATURE).logprobs[b.completion_mask] for b in (wide, batch))
    assert torch.allclose(ours, theirs, atol=TOLERANCE)


@pytest.mark.parametrize("statistics", LAYOUTS)
def test_padding_is_finite(statistics: Any, model: Model) -> None:
    """A gradient of 0 times an infinite value would be NaN."""
    for values in statistics(model, random_rows(n_groups=3, group_size=3)):
        assert torch.isfinite(values).all()


# --- precision and cost


@pytest.fixture
def head_calls(model: Model) -> Iterator[list[tuple[torch.Size, torch.dtype]]]:
    """Shape and precision of every output of the head."""
    calls: list[tuple[torch.Size, torch.dtype]] = []
    hook = model.get_output_embeddings().register_forward_hook(lambda _m, _i, out: calls.append((out.shape, out.dtype)))
    yield calls
    hook.remove()


def test_the_head_sees_completion_positions_alone(model: Model, head_calls: list[Any]) -> None:
    rows = random_rows(n_groups=2)
    padded(model, rows)
    packed(model, rows)
    lengths = [len(row.completion_token_ids) for row in rows]
    assert [shape for shape, _ in head_calls] == [
        (len(rows), max(lengths) + 1, VOCABULARY),
        (1, sum(lengths), VOCABULARY),
    ]


def test_float32_masters_run_in_bfloat16(model: Model, head_calls: list[Any]) -> None:
    assert {value.dtype for value in model.parameters() if value.requires_grad} == {torch.float32}
    padded(model, random_rows(n_groups=1))
    packed(model, random_rows(n_groups=1))
    assert [dtype for _, dtype in head_calls] == [torch.bfloat16, torch.bfloat16]


def test_a_packed_row_runs_each_prompt_once() -> None:
    rows = random_rows(n_groups=2, group_size=3)
    n_prompt = len(rows[0].prompt_token_ids) + len(rows[3].prompt_token_ids)
    n_completion = sum(len(row.completion_token_ids) - 1 for row in rows)  # nothing follows a last token
    assert pack_rows(rows, CPU).input_ids.shape == (1, n_prompt + n_completion)


def test_a_packed_row_by_hand() -> None:
    rows = [
        TrainingRow("a/0", "a", [11, 12], [21, 22], [0.0] * 2, 0.0),
        TrainingRow("a/1", "a", [11, 12], [23, 24], [0.0] * 2, 0.0),
        TrainingRow("b/0", "b", [13], [25], [0.0], 0.0),
    ]
    found = pack_rows(rows, CPU)
    assert found.input_ids.tolist() == [[11, 12, 21, 23, 13]]
    assert found.position_ids.tolist() == [[0, 1, 2, 2, 0]]
    assert found.attention_mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],  # the second completion sees the prompt, not the first completion
        [0, 0, 0, 0, 1],
    ]
    assert found.predicting.tolist() == [1, 2, 1, 3, 4]
    assert found.targets.tolist() == [21, 22, 23, 24, 25]
    assert found.lengths == [2, 2, 1]


# --- which models can be packed


class Config:
    """What `can_pack` asks of a model's config."""

    def __init__(self, attention: str, **settings: Any) -> None:
        self._attn_implementation = attention
        self.__dict__.update(settings)

    def get_text_config(self) -> Config:
        return self

    def to_dict(self) -> dict[str, Any]:
        return self.__dict__


@pytest.mark.parametrize(
    ("config", "can"),
    [
        (Config("sdpa"), True),
        (Config("sdpa", sliding_window=None), True),
        (Config("sdpa", layer_types=["full_attention"] * 2, sliding_window=4096), True),
        (Config("sdpa", layer_types=["full_attention", "sliding_attention"]), False),
        (Config("sdpa", layer_types=["full_attention", "linear_attention"]), False),
        (Config("sdpa", sliding_window=4096), False),
        (Config("sdpa", alibi=True), False),
        (Config("eager"), False),
        (Config("flash_attention_2"), False),
    ],
)
def test_models_that_can_be_packed(config: Config, can: bool) -> None:
    assert can_pack(type("Packed", (), {"config": config})()) is can


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.usefixtures("in_float32")
def test_what_can_be_packed_is_packed_right(attention: str, base: Path) -> None:
    model = load_trainable(base, base)
    model.set_attn_implementation(attention)
    rows = random_rows()
    mask = collate(rows, CPU).completion_mask
    is_right = torch.allclose(packed(model, rows).logprobs[mask], padded(model, rows).logprobs[mask], atol=TOLERANCE)
    assert is_right or not can_pack(model)
