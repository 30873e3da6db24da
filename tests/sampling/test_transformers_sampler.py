"""The decode loop against plain forwards without a cache, on tiny random models of several architectures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from pipeline.errors import BadInput
from pipeline.params import SamplingParams
from pipeline.sampling import FinishReason, SampledCompletion, SampleRequest
from pipeline.sampling.transformers_sampler import TransformersSampler
from tests import threads
from tests.bpe_tokenizer import build_bpe_tokenizer

VOCABULARY = 150
N_POSITIONS = 64
TEMPERATURE = 0.7
LIMIT = 12
END_TOKENS = (5, 9, 11, 40, 77)

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": N_POSITIONS,
    # The pad is one of the end tokens, and prompts contain both.
    "pad_token_id": 5,
    "eos_token_id": 5,
    "bos_token_id": 1,
}
CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**COMMON),
    "llama, one key head": lambda: LlamaConfig(**{**COMMON, "num_key_value_heads": 1}),
    "qwen3": lambda: Qwen3Config(**COMMON, head_dim=16),
    # A window of 6 positions, which prompts and completions outgrow.
    "gemma3": lambda: Gemma3TextConfig(
        **COMMON, head_dim=16, sliding_window=6, layer_types=["sliding_attention", "full_attention"]
    ),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=N_POSITIONS, bos_token_id=1, eos_token_id=5
    ),
    # Convolutions, whose state is no key-value cache, beside attention.
    "lfm2": lambda: Lfm2Config(**COMMON, layer_types=["conv", "full_attention"]),
}
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")),
]


def build(config: PreTrainedConfig, device: str = "cpu") -> Any:
    """A model of weights large enough to make its distribution far from uniform."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.2)
    return model.to(device).eval()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads cost a model this small more than they give."""
    with threads.one_thread():
        yield


@pytest.fixture(scope="module")
def llama() -> Any:
    return build(CONFIGS["llama"]())


def ragged_requests(n_seeds: int = 4) -> list[SampleRequest]:
    """Prompts of 1 to 20 tokens, two of them the same, some with end tokens in them."""
    generator = torch.Generator().manual_seed(3)
    lengths = [7, 1, 20, 3, 12, 7, 2]
    prompts = [torch.randint(0, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
    prompts[4][3:6] = [5, 9, 5]
    prompts[6] = [5, 5]
    prompts[5] = list(prompts[0])
    return [SampleRequest(prompt, [1000 * i + j for j in range(n_seeds)]) for i, prompt in enumerate(prompts)]


def sample(
    model: Any,
    requests: list[SampleRequest],
    end_tokens: tuple[int, ...] = END_TOKENS,
    limit: int = LIMIT,
    batch: int = 100,
) -> list[list[SampledCompletion]]:
    params = SamplingParams(temperature=TEMPERATURE, max_completion_tokens=limit, max_batch_completions=batch)
    return TransformersSampler(model, end_tokens, params).sample(requests, lambda reasons, n_tokens: None)


def rows_of(
    requests: list[SampleRequest], groups: list[list[SampledCompletion]]
) -> Iterator[tuple[SampleRequest, SampledCompletion]]:
    for request, group in zip(requests, groups, strict=True):
        assert len(group) == len(request.seeds)
        yield from product([request], group)


@torch.no_grad()
def plain_logprobs(model: Any, prompt: list[int], completion: list[int], n_without_ends: int = 0) -> list[float]:
    """From one forward over prompt and completion, with neither cache nor padding nor other rows.

    The first `n_without_ends` tokens of the completion are drawn of those that are no end token.
    """
    ids = torch.tensor([prompt + completion], device=model.device)
    logits = model(input_ids=ids, use_cache=False).logits[0].double()
    logits[len(prompt) - 1 : len(prompt) - 1 + n_without_ends, list(END_TOKENS)] = -torch.inf
    logprobs = torch.log_softmax(logits / TEMPERATURE, dim=-1)
    return [float(logprobs[len(prompt) - 1 + i, token]) for i, token in enumerate(completion)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", [100, 5])
@pytest.mark.parametrize("name", CONFIGS)
def test_logprobs_are_those_of_a_plain_forward(name: str, batch: int, device: str) -> None:
    reference, model = build(CONFIGS[name](), device), build(CONFIGS[name](), device)
    requests = ragged_requests()
    groups = sample(model, requests, batch=batch)
    lengths = set()
    for request, completion in rows_of(requests, groups):
        expected = plain_logprobs(reference, request.prompt_token_ids, completion.token_ids)
        assert completion.logprobs == pytest.approx(expected, abs=2e-5 if device == "cpu" else 1e-4)
        assert len(completion.logprobs) == len(completion.token_ids)
        lengths.add(len(completion.token_ids))
    assert len(lengths) > 4  # rows left the batch at many steps


def test_a_model_that_can_not_attend_in_our_way_attends_in_its_own(llama: Any) -> None:
    eager = build(CONFIGS["llama"]())
    eager.set_attn_implementation("eager")  # as one does that caps its scores
    requests = ragged_requests(2)
    for (_, mine), (_, other) in zip(
        rows_of(requests, sample(eager, requests)), rows_of(requests, sample(llama, requests)), strict=True
    ):
        assert mine.token_ids == other.token_ids
        assert mine.logprobs == pytest.approx(other.logprobs, abs=2e-5)


def test_logprobs_of_an_adapter_are_those_of_the_adapted_model() -> None:
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    base, adapted = build(CONFIGS["llama"]()), build(CONFIGS["llama"]())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = get_peft_model(adapted, config).eval()
    requests = ragged_requests(2)
    rows = list(rows_of(requests, sample(model, requests)))
    plain = [plain_logprobs(model, request.prompt_token_ids, row.token_ids) for request, row in rows]
    without = [plain_logprobs(base, request.prompt_token_ids, row.token_ids) for request, row in rows]
    assert all(row.logprobs == pytest.approx(numbers, abs=2e-5) for (_, row), numbers in zip(rows, plain, strict=True))
    assert not all(
        row.logprobs == pytest.approx(numbers, abs=1e-2) for (_, row), numbers in zip(rows, without, strict=True)
    )


@pytest.mark.parametrize("batch", [1, 3, 7, 28])
def test_batching_changes_no_completion(llama: Any, batch: int) -> None:
    requests = ragged_requests()
    together, apart = sample(llama, requests), sample(llama, requests, batch=batch)
    for (_, mine), (_, other) in zip(rows_of(requests, together), rows_of(requests, apart), strict=True):
        assert (mine.token_ids, mine.finish_reason) == (other.token_ids, other.finish_reason)
        assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_order_of_requests_changes_no_completion(llama: Any, seed: int) -> None:
    requests = ragged_requests()
    order = torch.randperm(len(requests), generator=torch.Generator().manual_seed(seed)).tolist()
    shuffled = sample(llama, [requests[i] for i in order], batch=6)
    expected = sample(llama, requests)
    for place, i in enumerate(order):
        assert [row.token_ids for row in shuffled[place]] == [row.token_ids for row in expected[i]]


def test_a_completion_depends_on_its_prompt_and_seed_alone(llama: Any) -> None:
    prompt = [3, 4, 8]
    alone = sample(llama, [SampleRequest(prompt, [42])])[0][0]
    among = sample(llama, [SampleRequest([7] * 9, [1, 2]), SampleRequest(prompt, [41, 42, 43])])[1]
    assert among[1].token_ids == alone.token_ids
    twins = sample(llama, [SampleRequest(prompt, [42, 42])])[0]
    assert [row.token_ids for row in twins] == [alone.token_ids] * 2


def test_completions_of_a_group_differ(llama: Any) -> None:
    for group in sample(llama, ragged_requests(8)):
        assert len({tuple(row.token_ids) for row in group}) >= 7


def test_seeds_fill_the_whole_range_of_the_column(llama: Any) -> None:
    group = sample(llama, [SampleRequest([3], [0, 2**63 - 1])])[0]
    assert group[0].token_ids != group[1].token_ids


def test_a_completion_ends_at_its_first_end_token_or_at_the_limit(llama: Any) -> None:
    requests = ragged_requests(8)
    ends = []
    for _, row in rows_of(requests, sample(llama, requests)):
        assert not set(row.token_ids[:-1]) & set(END_TOKENS)
        is_stopped = row.token_ids[-1] in END_TOKENS
        assert row.finish_reason == ("stop" if is_stopped else "length")
        assert len(row.token_ids) <= LIMIT
        assert is_stopped or len(row.token_ids) == LIMIT
        ends.append(row.token_ids[-1] if is_stopped else None)
    assert len(set(ends)) > 3  # several of the end tokens, and the limit


def test_without_an_end_token_every_completion_has_exactly_the_limit(llama: Any) -> None:
    requests = ragged_requests(2)
    for limit in (1, 2, 9):
        for _, row in rows_of(requests, sample(llama, requests, end_tokens=(), limit=limit)):
            assert (len(row.token_ids), row.finish_reason) == (limit, "length")


def test_an_end_token_in_the_last_permitted_place_is_a_stop(llama: Any) -> None:
    requests = [SampleRequest([3, 4], list(range(8)))]
    free = sample(llama, requests, end_tokens=(), limit=6)[0]
    row = next(row for row in free if row.token_ids[-1] not in row.token_ids[:-1])
    again = sample(llama, requests, end_tokens=(row.token_ids[-1],), limit=6)[0][free.index(row)]
    assert (again.token_ids, again.finish_reason) == (row.token_ids, "stop")
    assert len(again.token_ids) == 6


def test_before_the_minimum_no_end_token_is_drawn_and_the_others_share_its_probability(llama: Any) -> None:
    params = SamplingParams(
        temperature=TEMPERATURE, max_completion_tokens=LIMIT, min_completion_tokens=5, stop_token_ids=[77]
    )
    requests = ragged_requests()
    groups = TransformersSampler(llama, END_TOKENS[:-1], params).sample(requests, lambda reasons, n_tokens: None)
    lengths = set()
    for request, row in rows_of(requests, groups):
        assert not set(row.token_ids[:5]) & set(END_TOKENS)
        expected = plain_logprobs(llama, request.prompt_token_ids, row.token_ids, n_without_ends=5)
        assert row.logprobs == pytest.approx(expected, abs=2e-5)
        lengths.add(len(row.token_ids))
    assert 6 in lengths  # the first token that may be one
    assert len(lengths) > 3


def test_a_stop_string_ends_a_completion_and_stays(llama: Any) -> None:
    tokenizer = build_bpe_tokenizer()
    requests = ragged_requests(8)
    free = sample(llama, requests, end_tokens=())
    string = "e"
    params = SamplingParams(temperature=TEMPERATURE, max_completion_tokens=LIMIT, stop=[string])
    groups = TransformersSampler(llama, (), params, tokenizer).sample(requests, lambda reasons, n_tokens: None)
    n_stopped = 0
    for (_, row), (_, longer) in zip(rows_of(requests, groups), rows_of(requests, free), strict=True):
        n_tokens = len(row.token_ids)
        assert row.token_ids == longer.token_ids[:n_tokens]
        assert row.logprobs == pytest.approx(longer.logprobs[:n_tokens], abs=1e-5)
        *before, text = (tokenizer.decode(row.token_ids[:n], skip_special_tokens=True) for n in range(n_tokens + 1))
        assert not any(string in earlier for earlier in before)
        is_stopped = string in text
        assert (row.finish_reason, is_stopped or n_tokens == LIMIT) == ("stop" if is_stopped else "length", True)
        n_stopped += is_stopped
    assert 0 < n_stopped < 56


def test_a_batch_stays_filled_while_rows_wait(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    n_rows: list[int] = []
    forward = TransformersSampler._forward

    def counted(sampler: TransformersSampler, ids: torch.Tensor, *others: Any) -> torch.Tensor:
        if ids.shape[1] == 1:
            n_rows.append(len(ids))
        return forward(sampler, ids, *others)

    monkeypatch.setattr(TransformersSampler, "_forward", counted)
    requests = [SampleRequest([3, 4, 8 + i], list(range(10 * i, 10 * i + 4))) for i in range(16)]
    groups = sample(llama, requests, batch=8)
    lengths = [len(row.token_ids) for _, row in rows_of(requests, groups)]
    one_after_another = sum(max(lengths[start : start + 8]) - 1 for start in range(0, 64, 8))
    assert max(n_rows) == 8
    assert len(n_rows) < one_after_another
    assert sum(after > before for before, after in pairwise(n_rows)) > 8  # filled up more often than there are batches


def test_progress_adds_up(llama: Any) -> None:
    requests = ragged_requests()
    calls: list[tuple[Sequence[FinishReason], int]] = []
    params = SamplingParams(temperature=TEMPERATURE, max_completion_tokens=LIMIT, max_batch_completions=6)
    sampler = TransformersSampler(llama, END_TOKENS, params)
    groups = sampler.sample(requests, lambda reasons, n_tokens: calls.append((reasons, n_tokens)))
    rows = [row for _, row in rows_of(requests, groups)]
    ended = Counter(reason for reasons, _ in calls for reason in reasons)
    assert ended == Counter(row.finish_reason for row in rows)
    assert ended.total() == 28
    assert sum(n for _, n in calls) == sum(len(row.token_ids) for row in rows)


def test_nothing_asked_is_nothing_sampled(llama: Any) -> None:
    assert sample(llama, []) == []
    assert sample(llama, [SampleRequest([3], []), SampleRequest([4], [1])])[0] == []


def test_a_completion_may_use_the_last_position(llama: Any) -> None:
    fits = SampleRequest([3] * (N_POSITIONS - LIMIT), [0])
    assert len(sample(llama, [fits], end_tokens=())[0][0].token_ids) == LIMIT


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused(poison: float) -> None:
    model = build(CONFIGS["llama"]())
    with torch.no_grad():
        model.model.norm.weight[0] = poison
    with pytest.raises(BadInput, match="data/policy: the policy gives logits that are not finite"):
        sample(model, ragged_requests(1))


def test_a_model_without_a_key_value_cache_is_refused() -> None:
    model = build(MambaConfig(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(BadInput, match="a model of type mamba takes no key-value cache"):
        sample(model, [SampleRequest([3], [0])])
