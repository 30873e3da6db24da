"""Log-probabilities and entropies of completion tokens, and their gradients, from the head's input."""

from __future__ import annotations

import gc
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.training import logprobs
from pipeline.training.logprobs import Barred, Entropy, Head, TokenStatistics, token_statistics

CASES = {case["name"]: case for case in json.loads((Path(__file__).parents[1] / "golden" / "loss.json").read_text())}

HEADS = {
    "plain": {},
    "scaled": {"scale": 0.5},
    "capped": {"cap": 3.0},
    "scaled and capped": {"scale": 2.0, "cap": 5.0},
}
"""Settings of a `Head`: all ways in which models make logits of products."""


def of_logits(logits: torch.Tensor, token_ids: list[int], temperature: float) -> TokenStatistics:
    """Statistics of given `logits` [T, vocabulary]: the head is the identity."""
    head = Head(torch.eye(logits.shape[1], dtype=logits.dtype))
    return token_statistics(logits, head, torch.tensor(token_ids), temperature)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def draw_ids(n: int, n_vocabulary: int) -> torch.Tensor:
    return torch.randint(n_vocabulary, (n,), generator=torch.Generator().manual_seed(9))


def cut_in_chunks(monkeypatch: pytest.MonkeyPatch, n_tokens: int, n_vocabulary: int) -> None:
    monkeypatch.setattr(logprobs, "LOGITS_PER_CHUNK", n_tokens * n_vocabulary)


# --- values


def test_case_temperature() -> None:
    case = CASES["temperature"]
    found = of_logits(torch.tensor([case["logits"]]), [case["token"]], case["temperature"])
    assert found.logprobs.item() == pytest.approx(case["logprob"], abs=1e-6)


def test_entropy_by_hand() -> None:
    # Probabilities 1/2, 1/4, 1/4: log 2 / 2 + 2 * log 4 / 4 = 1.5 log 2. A uniform distribution over 3: log 3.
    found = of_logits(torch.tensor([[0.5, 0.25, 0.25], [1.0, 1.0, 1.0]]).log(), [1, 2], 1.0)
    assert found.entropy.tolist() == pytest.approx([1.5 * math.log(2), math.log(3)])
    assert found.logprobs.tolist() == pytest.approx([math.log(0.25), -math.log(3)])


def test_entropy_is_that_after_temperature() -> None:
    # Logits log 4 and 0 at temperature 2 are log 2 and 0: probabilities 2/3 and 1/3.
    found = of_logits(torch.tensor([[math.log(4), 0.0]]), [0], 2.0)
    assert found.entropy.item() == pytest.approx(-(2 / 3) * math.log(2 / 3) - (1 / 3) * math.log(1 / 3))


def test_a_head_by_hand() -> None:
    # Products 2 * 3 + 1 = 7 and 2 * -1 - 2 = -4, halved 3.5 and -2, capped at 4: 4 tanh(0.875) and 4 tanh(-0.5).
    head = Head(torch.tensor([[3.0], [-1.0]]), bias=torch.tensor([1.0, -2.0]), scale=0.5, cap=4.0)
    expected = [4 * math.tanh(0.875), 4 * math.tanh(-0.5)]
    assert head.logits(torch.tensor([[2.0]]))[0].tolist() == pytest.approx(expected)
    found = token_statistics(torch.tensor([[2.0]]), head, torch.tensor([1]), temperature=1.0)
    assert found.logprobs.item() == pytest.approx(-math.log1p(math.exp(expected[0] - expected[1])))


@pytest.mark.parametrize("settings", HEADS.values(), ids=HEADS)
def test_float64_agrees(settings: dict[str, Any]) -> None:
    hidden, weight, bias, ids = draw(12, 8), draw(50, 8, seed=1) * 3, draw(50, seed=2), draw_ids(12, 50)
    found = token_statistics(hidden.float(), Head(weight.float(), bias.float(), **settings), ids, 0.7)
    expected = (Head(weight, bias, **settings).logits(hidden) / 0.7).log_softmax(1)
    assert found.logprobs.dtype == found.entropy.dtype == torch.float32
    assert torch.allclose(found.logprobs.double(), expected.gather(1, ids[:, None])[:, 0], atol=2e-5)
    assert torch.allclose(found.entropy.double(), -(expected.exp() * expected).sum(1), atol=2e-5)


def test_float64_stays_float64() -> None:
    found = of_logits(draw(3, 5), [0, 1, 2], 1.0)
    assert found.logprobs.dtype == found.entropy.dtype == torch.float64


def test_bfloat16_products_are_summed_in_float32() -> None:
    found = of_logits(torch.zeros(1, 1000, dtype=torch.bfloat16), [5], 1.0)
    assert found.logprobs.dtype == found.entropy.dtype == torch.float32
    assert found.logprobs.item() == pytest.approx(-math.log(1000), abs=1e-6)
    assert found.entropy.item() == pytest.approx(math.log(1000), abs=1e-5)


def test_autocast_says_the_type_of_the_products() -> None:
    # In bfloat16 1.001 is 1: the logits are 1 and 0, not 1.001 and 0.
    hidden, head, ids = torch.tensor([[1.001, 0.0]]), Head(torch.eye(2)), torch.tensor([0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = token_statistics(hidden, head, ids, 1.0)
    assert found.logprobs.dtype == torch.float32
    assert found.logprobs.item() == pytest.approx(-math.log1p(math.exp(-1)), abs=1e-6)
    exact = token_statistics(hidden, head, ids, 1.0)
    assert exact.logprobs.item() == pytest.approx(-math.log1p(math.exp(-1.001)), abs=1e-6)


def test_an_entropy_left_out_is_0() -> None:
    logits = draw(4, 5)
    found = token_statistics(logits, Head(torch.eye(5, dtype=torch.float64)), torch.arange(4), 0.7, "left_out")
    assert found.entropy.tolist() == [0.0] * 4
    assert torch.equal(found.logprobs, of_logits(logits, [0, 1, 2, 3], 0.7).logprobs)


def test_what_was_barred_shares_no_probability() -> None:
    # Probabilities 4/6, 1/6, 1/6; without the first 1/2 and 1/2, whose entropy is log 2.
    logits, barred = (
        torch.tensor([[4.0, 1.0, 1.0]] * 3).log(),
        Barred(torch.tensor([0]), torch.tensor([True, False, True])),
    )
    found = token_statistics(logits, Head(torch.eye(3)), torch.tensor([1, 1, 2]), 1.0, barred=barred)
    assert found.logprobs.tolist() == pytest.approx([math.log(1 / 2), math.log(1 / 6), math.log(1 / 2)])
    assert found.entropy[[0, 2]].tolist() == pytest.approx([math.log(2)] * 2)


# --- gradients


def test_gradient_of_a_logprob() -> None:
    # Probabilities 2/3 and 1/3: the gradient is (one-hot - probabilities) / temperature; the entropy has none.
    logits = torch.tensor([[2 * math.log(2), 0.0]], requires_grad=True)
    found = of_logits(logits, [0], 2.0)
    assert not found.entropy.requires_grad
    (gradient,) = torch.autograd.grad(found.logprobs.sum(), logits)
    assert gradient[0].tolist() == pytest.approx([1 / 6, -1 / 6])


@pytest.mark.parametrize("entropy", get_args(Entropy))
@pytest.mark.parametrize("settings", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize(
    ("n_drawn", "barred"),
    [(6, None), (4, Barred(torch.tensor([4, 5]), torch.tensor([True, True, False, True, False])))],
    ids=["all", "barred"],
)
def test_gradients_are_those_of_finite_differences(
    n_drawn: int, barred: Barred | None, settings: dict[str, Any], entropy: Entropy, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_in_chunks(monkeypatch, 2, 6)
    ids = draw_ids(5, n_drawn)

    def statistics(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = token_statistics(hidden, Head(weight, bias, **settings), ids, 0.7, entropy, barred)
        return found if entropy == "trained" else found[:1]

    inputs = draw(5, 3), draw(6, 3, seed=1), draw(6, seed=2)
    assert torch.autograd.gradcheck(statistics, [values.requires_grad_() for values in inputs])


@pytest.mark.parametrize("trained", [[0], [1], [2], [0, 1], [0, 2], [1, 2]])
def test_a_gradient_does_not_depend_on_what_else_is_trained(trained: list[int]) -> None:
    def gradients(trained: list[int]) -> dict[int, torch.Tensor]:
        inputs = [draw(5, 3), draw(6, 3, seed=1), draw(6, seed=2)]
        chosen = [inputs[i].requires_grad_() for i in trained]
        found = token_statistics(inputs[0], Head(inputs[1], inputs[2]), draw_ids(5, 6), 0.7, "trained")
        return dict(
            zip(trained, torch.autograd.grad((found.logprobs - 0.3 * found.entropy).sum(), chosen), strict=True)
        )

    every = gradients([0, 1, 2])
    assert all(torch.allclose(gradient, every[i]) for i, gradient in gradients(trained).items())


def test_the_gradient_of_a_leaf_is_added_to_what_it_has() -> None:
    def gradients(adds_to_grad: bool) -> list[torch.Tensor | None]:
        hidden, weight, bias = inputs = [draw(5, 3), draw(6, 3, seed=1), draw(6, seed=2)]
        for values in inputs:
            values.requires_grad_()
        for factor in (1.0, -0.3):  # the first makes the gradient, the second adds to it
            tied = (weight * weight.detach()).sum()  # another use of it, as by embeddings
            found = token_statistics(hidden, Head(weight, bias, adds_to_grad=adds_to_grad), draw_ids(5, 6), 0.7)
            (factor * (found.logprobs.sum() + tied)).backward()  # type: ignore[no-untyped-call]
        return [values.grad for values in inputs]

    for ours, theirs in zip(gradients(True), gradients(False), strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("n_per_chunk", [0.5, 1, 3, 4, 7, 100])
@pytest.mark.parametrize("n_tokens", [0, 1, 7])
def test_chunking_changes_nothing(n_tokens: int, n_per_chunk: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[torch.Tensor]:
        inputs = [draw(n_tokens, 3), draw(20, 3, seed=1), draw(20, seed=2)]
        hidden, weight, bias = (values.requires_grad_() for values in inputs)
        head = Head(weight, bias, scale=0.5, cap=3.0)
        found = token_statistics(hidden, head, draw_ids(n_tokens, 20), 0.7, "trained")
        factor = draw(n_tokens, seed=3)
        return [*found, *torch.autograd.grad((factor * (found.logprobs + 0.1 * found.entropy)).sum(), inputs)]

    whole = run()
    monkeypatch.setattr(logprobs, "LOGITS_PER_CHUNK", int(n_per_chunk * 20))
    for ours, theirs in zip(run(), whole, strict=True):
        assert ours.shape == theirs.shape
        assert torch.allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("entropy", get_args(Entropy))
def test_a_token_that_cannot_be_makes_nothing_nan(entropy: Entropy) -> None:
    # Logits log 2, 0 and -inf: probabilities 2/3, 1/3 and 0.
    hidden = torch.ones(1, 1, requires_grad=True)
    weight = torch.tensor([[math.log(2)], [0.0], [0.0]], requires_grad=True)
    bias = torch.tensor([0.0, 0.0, -math.inf], requires_grad=True)
    found = token_statistics(hidden, Head(weight, bias), torch.tensor([0]), 1.0, entropy)
    assert found.logprobs.item() == pytest.approx(math.log(2 / 3))
    by_hand = -(2 / 3) * math.log(2 / 3) - (1 / 3) * math.log(1 / 3)
    assert found.entropy.item() == pytest.approx(0.0 if entropy == "left_out" else by_hand)
    total = found.logprobs.sum() + (found.entropy.sum() if entropy == "trained" else 0.0)
    for_hidden, for_weight, for_bias = torch.autograd.grad(total, [hidden, weight, bias])
    # Of the log-probability 1/3, -1/3 and 0. Of the entropy -p (log p + entropy), with log p_1 - log p_2 = log 2:
    # -2/3 * (log p_1 + entropy) = -2/9 log 2, and as much the other way.
    step = 1 / 3 - (2 / 9 * math.log(2) if entropy == "trained" else 0.0)
    assert for_bias.tolist() == pytest.approx([step, -step, 0.0], abs=1e-7)
    assert for_weight[:, 0].tolist() == pytest.approx([step, -step, 0.0], abs=1e-7)
    assert for_hidden.item() == pytest.approx(step * math.log(2))


def test_the_logprob_of_a_token_that_cannot_be_is_finite() -> None:
    found = of_logits(torch.tensor([[0.0, 0.0]]), [0], 1.0)
    head = Head(torch.zeros(2, 1), bias=torch.tensor([0.0, -math.inf]))
    found = token_statistics(torch.zeros(1, 1), head, torch.tensor([1]), 1.0)
    assert found.logprobs.item() == torch.finfo(torch.float32).min
    assert found.entropy.item() == 0.0


@pytest.mark.parametrize("margin", [0.0, 4.0, 8.0, 16.0])
def test_a_bfloat16_gradient_is_near_the_float32_one(margin: float) -> None:
    """Near a probability of 1, one minus it would be 0 in bfloat16, whose numbers there are 1/256 apart."""
    hidden = torch.tensor([[1.0, margin]])  # these, and the logits they give, are numbers of bfloat16
    head = Head(torch.tensor([[1.0, 1.0], [0.5, 0.0], [-2.0, 0.0]]))

    def gradients() -> list[torch.Tensor]:
        inputs = [hidden.clone().requires_grad_(), head.weight.clone().requires_grad_()]
        found = token_statistics(inputs[0], replace(head, weight=inputs[1]), torch.tensor([0]), 1.0)
        return list(torch.autograd.grad(found.logprobs.sum(), inputs))

    exact = gradients()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = gradients()
    for ours, theirs in zip(rounded, exact, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() <= 2**-7 * theirs.norm()


# --- memory


class Sizes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the largest tensor with a dimension of a given size that any operation makes."""

    def __init__(self, dimension: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dimension, self.largest = dimension, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else [out]:
            if isinstance(value, torch.Tensor) and self.dimension in value.shape:
                self.largest = max(self.largest, value.numel())
        return out


N_VOCABULARY = 1009
"""A size that nothing else has."""


@pytest.fixture(params=get_args(Entropy))
def entropy(request: pytest.FixtureRequest) -> Entropy:
    found: Entropy = request.param
    return found


@pytest.mark.parametrize("n_tokens", [16, 64])
@pytest.mark.parametrize("is_head_trained", [False, True])
def test_no_tensor_grows_with_tokens_and_vocabulary(
    n_tokens: int, is_head_trained: bool, entropy: Entropy, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_in_chunks(monkeypatch, 8, N_VOCABULARY)
    hidden = draw(n_tokens, 4, dtype=torch.float32).requires_grad_()
    weight = draw(N_VOCABULARY, 4, seed=1, dtype=torch.float32).requires_grad_(is_head_trained)
    with Sizes(N_VOCABULARY) as sizes:
        found = token_statistics(hidden, Head(weight), draw_ids(n_tokens, N_VOCABULARY), 1.0, entropy)
        torch.autograd.backward(found.logprobs.sum())
    assert sizes.largest == 8 * N_VOCABULARY


@pytest.mark.parametrize("n_tokens", [16, 64])
@pytest.mark.parametrize("is_head_trained", [False, True])
def test_nothing_of_the_vocabulary_is_kept_but_the_head(n_tokens: int, is_head_trained: bool, entropy: Entropy) -> None:
    hidden = draw(n_tokens, 4, dtype=torch.float32).requires_grad_()
    weight = draw(N_VOCABULARY, 4, seed=1, dtype=torch.float32).requires_grad_(is_head_trained)
    saved: list[torch.Tensor] = []

    def save(values: torch.Tensor) -> torch.Tensor:
        saved.append(values)
        return values

    with torch.autograd.graph.saved_tensors_hooks(save, lambda values: values):
        found = token_statistics(hidden, Head(weight), draw_ids(n_tokens, N_VOCABULARY), 1.0, entropy)
    alive = [value for value in gc.get_objects() if type(value) is torch.Tensor]  # on the context, or anywhere
    of_vocabulary = [value for value in [*saved, *alive] if N_VOCABULARY in value.shape]
    assert any(value is weight for value in of_vocabulary), "what is alive is seen"
    assert {value.data_ptr() for value in of_vocabulary} == {weight.data_ptr()}
    assert found.logprobs.requires_grad
