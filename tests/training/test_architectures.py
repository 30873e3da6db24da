"""Tiny random models of many architectures: their statistics and gradients are those of one plain forward per row."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pipeline.errors import BadInput
from pipeline.policy import Model
from pipeline.training.batching import TrainingRow
from pipeline.training.forward import is_packing, prepare_model, row_statistics
from pipeline.training.grouped_attention import GROUPED_ATTENTION, grouped_attention
from tests.tiny_updates import TEMPERATURE, VOCABULARY, distance, random_rows

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
WINDOWS = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}


def build(config: str, **settings: Any) -> Model:
    """A tiny model, with weights large enough for attention and next-token distributions to be far from uniform."""
    common = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(getattr(transformers, config)(**common, **settings)).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.15)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)  # biases are 0 and norms 1 to begin with
    return model


@dataclass(frozen=True)
class Architecture:
    """The config of a tiny transformer, and whether its groups can be packed."""

    config: str
    settings: dict[str, Any]
    is_packing: bool = True

    def build(self) -> Model:
        return build(self.config, **{"intermediate_size": 48, **HEADS, **self.settings})


ARCHITECTURES = {
    "Llama, tied head": Architecture("LlamaConfig", {"tie_word_embeddings": True}),
    "Llama, its own head": Architecture("LlamaConfig", {"tie_word_embeddings": False}),
    "Qwen3": Architecture("Qwen3Config", {"tie_word_embeddings": True}),
    "Qwen3, windows": Architecture("Qwen3Config", {"use_sliding_window": True, **WINDOWS}),
    "Qwen3, experts": Architecture("Qwen3MoeConfig", {"num_experts": 4, **EXPERTS}),
    "Mixtral": Architecture("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4}),
    "Mistral, window": Architecture("MistralConfig", {"sliding_window": 4}),
    "Gemma 2, all capped": Architecture(
        "Gemma2Config",
        {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 8, **WINDOWS},
        is_packing=False,
    ),
    "Gemma 2, capped logits": Architecture(
        "Gemma2Config", {"attn_logit_softcapping": None, "final_logit_softcapping": 3.0, **WINDOWS}
    ),
    "Gemma 3": Architecture(
        "Gemma3TextConfig", {"final_logit_softcapping": 3.0, "query_pre_attn_scalar": 8, **WINDOWS}
    ),
    "Cohere": Architecture("CohereConfig", {"logit_scale": 0.25, "use_qk_norm": True}),
    "Granite": Architecture("GraniteConfig", {"logits_scaling": 3.0, "attention_multiplier": 0.3}),
    "Phi, biased head": Architecture("PhiConfig", {"partial_rotary_factor": 0.5}),
    "PhiMoE, window": Architecture(  # it tells the mask of its window, and not its attention
        "PhimoeConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4}, is_packing=False
    ),
    "StableLM": Architecture("StableLmConfig", {}, is_packing=False),  # its layers take no keywords
    "GPT-NeoX": Architecture("GPTNeoXConfig", {}),
    "GPT-2": Architecture("GPT2Config", {"n_positions": 64}),
    "DeepSeek V3, latent attention": Architecture(
        "DeepseekV3Config",
        {
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 8,
            **EXPERTS,
        },
    ),
}


def plain_logprobs(model: Model, rows: list[TrainingRow]) -> torch.Tensor:
    """[T] of all completion tokens: each row alone, without mask, padding or positions."""
    logprobs = []
    for row in rows:
        ids = torch.tensor([row.prompt_token_ids + row.completion_token_ids])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(row.prompt_token_ids) - 1 : -1]
        completion = torch.tensor(row.completion_token_ids)
        logprobs.append((logits.double() / TEMPERATURE).log_softmax(1).gather(1, completion[:, None])[:, 0])
    return torch.cat(logprobs)


@pytest.mark.usefixtures("in_float32")
@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_plain_forwards_agree(architecture: Architecture, layout: str) -> None:
    plain = architecture.build()
    model = copy.deepcopy(plain)
    prepare_model(model)
    assert is_packing(model) is (architecture.is_packing and layout == "packed")
    if getattr(model.config, "attn_logit_softcapping", None):
        plain.set_attn_implementation("eager")  # the only one that caps scores
    rows = random_rows(n_groups=3, group_size=3, seed=4)
    assert max(len(row.prompt_token_ids) for row in rows) > 4 < max(len(row.completion_token_ids) for row in rows)
    padded = row_statistics(model, rows, TEMPERATURE).logprobs
    ours = torch.cat([padded[i, : len(row.completion_token_ids)] for i, row in enumerate(rows)])
    theirs = plain_logprobs(plain, rows)
    assert (ours - theirs).norm() <= 5e-5 * theirs.norm()
    weights = torch.randn(len(ours), generator=torch.Generator().manual_seed(0))
    torch.autograd.backward([(ours * weights).sum(), (theirs * weights).sum()])
    assert distance(gradients(model), gradients(plain)) <= 5e-5


@pytest.mark.parametrize(
    ("config", "is_packing_too"), [("MistralConfig", True), ("Gemma3TextConfig", True), ("PhimoeConfig", False)]
)
def test_a_window_longer_than_any_trial_is_not_missed(config: str, is_packing_too: bool) -> None:
    """PhiMoE tells its mask of the window, and not its attention."""
    settings = {"num_local_experts": 4, "num_experts_per_tok": 2} if config == "PhimoeConfig" else {}
    model = Architecture(config, {"sliding_window": 500, **settings}).build()
    prepare_model(model)
    assert is_packing(model) is is_packing_too


def test_attention_that_asks_for_what_packed_rows_lack_is_run_on_padded_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_sinks(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return grouped_attention(module, *args, **kwargs, s_aux=torch.zeros(4))

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, GROUPED_ATTENTION, with_sinks)
    model = ARCHITECTURES["Llama, tied head"].build()
    prepare_model(model)
    assert not is_packing(model)
    assert row_statistics(model, random_rows(n_groups=1), TEMPERATURE).logprobs.isfinite().all()


def gradients(model: Model) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.usefixtures("in_float32")
@pytest.mark.parametrize("config", ["RwkvConfig", "RecurrentGemmaConfig"])
def test_a_recurrence_that_runs_over_padding_is_refused(config: str) -> None:
    settings = {"num_attention_heads": 4, "attention_window_size": 4} if config == "RecurrentGemmaConfig" else {}
    with pytest.raises(BadInput, match="gives other values where a row is padded"):
        prepare_model(build(config, **settings))


@pytest.mark.usefixtures("in_float32")
def test_a_recurrence_that_stops_at_padding_is_run_on_padded_rows() -> None:
    model = build("MambaConfig", state_size=8)
    prepare_model(model)
    assert not is_packing(model)
