"""Packed linear layers against plain ones: the same bits, hooks and embeddings."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.sampling.packed_linear import PackedLinear, pack_linear_layers

needs_kernels = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    or not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="this CPU multiplies no bfloat16",
)
IDS = torch.arange(21).view(3, 7)


def build(dtype: torch.dtype = torch.bfloat16, *, bias: bool = False) -> Any:
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=36,
        intermediate_size=70,
        num_hidden_layers=2,
        num_attention_heads=2,
        attention_bias=bias,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).to(dtype).eval()


def adapted(model: Any) -> Any:
    config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    return get_peft_model(model, config).to(torch.bfloat16).eval()


def packed(model: Any) -> list[str]:
    return [name for name, module in model.named_modules() if type(module) is PackedLinear]


@needs_kernels
@pytest.mark.parametrize("make", [build, lambda: build(bias=True), lambda: adapted(build())])
@torch.inference_mode()
def test_logits_have_the_same_bits(make: Any) -> None:
    plain = make()
    model = copy.deepcopy(plain)
    pack_linear_layers(model)
    assert len(packed(model)) >= 15  # 7 of each layer, and the head
    for ids in (IDS, IDS[:, :1], IDS[:1]):
        assert torch.equal(model(input_ids=ids).logits, plain(input_ids=ids).logits)


@needs_kernels
@torch.inference_mode()
def test_layers_keep_their_hooks_and_embeddings_their_weight() -> None:
    model, seen = build(), []
    model.lm_head.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0].shape))
    weight = model.model.embed_tokens.weight.clone()
    pack_linear_layers(model)
    pack_linear_layers(model)  # a second sampler on the same model
    model(input_ids=IDS)
    assert seen == [(3, 7, 36)]
    assert torch.equal(model.model.embed_tokens.weight, weight)
    assert torch.equal(model.lm_head.weight.to_dense(), weight)


def test_other_types_stay_as_they_are() -> None:
    model = build(torch.float32)
    pack_linear_layers(model)
    assert packed(model) == []
    assert model.lm_head.weight is model.model.embed_tokens.weight
