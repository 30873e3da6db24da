"""A model run on training rows: packed groups where its attention allows it, padded rows elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from pipeline.errors import BadInput
from pipeline.params import TrainingParams
from pipeline.policy import Model, keep_score_cap
from pipeline.sampling.stopping import Stops
from pipeline.training.batching import PaddedRows, Step, TrainingRow, cut_padded_rows, pad_rows, plan_steps
from pipeline.training.buckets import padded_length
from pipeline.training.grouped_attention import GROUPED_ATTENTION, supports_grouped_attention, windows_of
from pipeline.training.logprobs import Barred, Entropy, Head, TokenStatistics, token_statistics
from pipeline.training.packing import PackedRow, count_packed_tokens, cut_packed_rows, pack_rows


def prepare_model(model: Model, gradient_checkpointing: bool = False) -> None:
    """Make ready a model that was just loaded, once, before work starts: packed rows where it can.

    With `gradient_checkpointing` its layers keep their inputs alone, and run again in the backward pass.

    Raises:
        BadInput: it makes its logits, or takes rows together, in a way that this module doesn't know.
    """
    keep_score_cap(model)
    check_head(model)
    _choose_layout(model)
    for module in model.modules():
        if hasattr(module, "cast_input_dtype_enabled"):
            # PEFT would widen each input to the adapter's float32, for autocast to narrow it again.
            module.cast_input_dtype_enabled = False
    if gradient_checkpointing:
        _checkpoint_layers(model)


def _checkpoint_layers(model: Model) -> None:
    if not _whole_model(model).supports_gradient_checkpointing:
        problem = f"a model of type {model.config.model_type} can't run its layers again"
        raise BadInput("params.yaml: training.gradient_checkpointing", problem, "Set it to false")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True  # the layer itself, which asks for it; what is in it stays without dropout


def is_packing(model: Model) -> bool:
    """Whether `model` was made ready for packed rows."""
    is_ready: bool = model.config._attn_implementation == GROUPED_ATTENTION
    return is_ready


def plan_update(model: Model, rows: Sequence[TrainingRow], params: TrainingParams, *seed_parts: object) -> list[Step]:
    """The optimizer steps of an update on `rows`, cut into micro-batches as `model` runs them."""
    cut = cut_packed_rows if is_packing(model) else cut_padded_rows
    cut_rows = partial(cut, rows, max_tokens=params.max_tokens_per_microbatch)
    return plan_steps(rows, params.epochs, params.minibatches, cut_rows, *seed_parts)


@dataclass(frozen=True)
class TokenCounts:
    """Tokens that steps run through the model: all, those that are padding, and those that predict a token."""

    n_run: int
    n_padding: int
    n_predicting: int


def count_tokens(model: Model, rows: Sequence[TrainingRow], steps: Sequence[Step]) -> TokenCounts:
    """The tokens of the forward passes of `steps`, every pass of a row counted."""
    n_run = n_padding = n_predicting = 0
    for indices in (indices for step in steps for indices in step.micro_batches):
        chosen = [rows[index] for index in indices]
        lengths = [(len(row.prompt_token_ids), len(row.completion_token_ids)) for row in chosen]
        n_predicting += sum(n_completion for _, n_completion in lengths)
        if is_packing(model):
            n_real = count_packed_tokens(chosen)
            n_all = padded_length(n_real)
        else:
            n_real = sum(map(sum, lengths))
            n_all = len(chosen) * sum(map(max, zip(*lengths, strict=True)))
        n_run += n_all
        n_padding += n_all - n_real
    return TokenCounts(n_run, n_padding, n_predicting)


def row_statistics(
    model: Model,
    rows: Sequence[TrainingRow],
    temperature: float,
    entropy: Entropy = "measured",
    stops: Stops | None = None,
) -> TokenStatistics:
    """Statistics [B, C] of the completions of `rows`, padded on the right with 0.

    The head sees only the hidden states that predict a completion token. With `stops`, end tokens are left out where
    they were when the completions were drawn.
    """
    barred = _barred(rows, stops, model.device) if stops and stops.min_tokens else None
    # A pass uses a weight once, so a cache of narrowed weights would keep them all for nothing.
    with torch.autocast(model.device.type, dtype=torch.bfloat16, cache_enabled=False):
        hidden, token_ids = _run(model, rows)
        flat = token_statistics(hidden, head_of(model), token_ids, temperature, entropy, barred)
    lengths = [len(row.completion_token_ids) for row in rows]
    return TokenStatistics(
        *(torch.nn.utils.rnn.pad_sequence(list(torch.split(values, lengths)), batch_first=True) for values in flat)
    )


def _barred(rows: Sequence[TrainingRow], stops: Stops, device: torch.device) -> Barred:
    places = [place < stops.min_tokens for row in rows for place in range(len(row.completion_token_ids))]
    return Barred(torch.tensor(sorted(stops.end_token_ids), device=device), torch.tensor(places, device=device))


def _run(model: Model, rows: Sequence[TrainingRow]) -> tuple[torch.Tensor, torch.Tensor]:
    """The hidden states [T, hidden size] that predict the T completion tokens, and the ids of these."""
    if is_packing(model):
        packed = pack_rows(rows, model.device)
        return _run_packed(model, packed), packed.targets
    padded = pad_rows(rows, model.device)
    return _run_padded(model, padded), padded.completion_ids[padded.completion_mask]


def _run_packed(model: Model, packed: PackedRow) -> torch.Tensor:
    hidden = _hidden_states(model, input_ids=packed.input_ids, position_ids=packed.position_ids, layout=packed.layout)
    return hidden[0].index_select(0, packed.predicting)


def _run_padded(model: Model, padded: PaddedRows) -> torch.Tensor:
    hidden = _hidden_states(
        model, input_ids=padded.input_ids, attention_mask=padded.attention_mask, position_ids=padded.position_ids
    )
    return hidden[:, -padded.completion_mask.shape[1] - 1 : -1][padded.completion_mask]


def _hidden_states(model: Model, **inputs: Any) -> torch.Tensor:
    """[rows, length, hidden size]: what `model` gives to its head."""
    hidden: torch.Tensor = _whole_model(model).get_decoder()(**inputs, use_cache=False).last_hidden_state
    return hidden


def head_of(model: Model) -> Head:
    """The head of `model`, with what an adapter adds to it."""
    whole = _whole_model(model)
    module = whole.get_output_embeddings()
    if module is None:
        raise BadInput("data/policy", f"a model of type {model.config.model_type} has no head", "Use a language model")
    config = whole.config.get_text_config()
    weight = getattr(module, "base_layer", module).weight
    for name in [] if getattr(module, "disable_adapters", True) else module.active_adapters:
        weight = weight + module.get_delta_weight(name)
    return Head(
        weight,
        bias=getattr(module, "bias", None),
        scale=(getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0),
        cap=getattr(config, "final_logit_softcapping", None),
        adds_to_grad=weight.requires_grad and weight.is_leaf,
    )


def _whole_model(model: Model) -> Any:
    """The causal language model of transformers that `model` is, or that its adapter was put on."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


@torch.no_grad()
def check_head(model: Model) -> None:
    """Compare the logits of a few tokens with those of `head_of`.

    Raises:
        BadInput: they differ.
    """
    whole = _whole_model(model)
    if whole.get_decoder() is whole:
        problem = f"a model of type {model.config.model_type} doesn't say which of its modules comes before the head"
        raise BadInput("data/policy", problem, "Use a base model of which transformers knows the decoder")
    n_known = model.get_input_embeddings().num_embeddings
    ids = torch.arange(1, 9, device=model.device).remainder(n_known).unsqueeze(0)
    expected = model(input_ids=ids, use_cache=False).logits[0].float()
    found = head_of(model).logits(_hidden_states(model, input_ids=ids)[0])
    tolerance = 1e-2 * expected.abs().max().item()
    if found.shape != expected.shape or not torch.allclose(found, expected, rtol=0, atol=tolerance):
        problem = f"a model of type {model.config.model_type} makes its logits in a way of its own"
        raise BadInput("data/policy", problem, "Use a base model whose logits are its head's, scaled or capped")


@torch.no_grad()
def _choose_layout(model: Model) -> None:
    """Set up packed rows where hidden states come out as those of each row alone, else check that of padded rows.

    Raises:
        BadInput: a row comes out otherwise when others are beside it, as with a recurrence that runs over padding.
    """
    rows, device = _trial_rows(model.get_input_embeddings().num_embeddings), model.device
    alone = torch.cat([_run_padded(model, pad_rows([row], device)) for row in rows])
    if supports_grouped_attention(model):
        model.set_attn_implementation(GROUPED_ATTENTION)
        # Some models keep the layout from their attention, and some ask more of it than it knows.
        with contextlib.suppress(TypeError, NotImplementedError):
            if _comes_out_packed(model, rows, alone):
                return
        model.set_attn_implementation("sdpa")
    if not _is_near(_run_padded(model, pad_rows(rows, device)), alone):
        problem = f"a model of type {model.config.model_type} gives other values where a row is padded"
        raise BadInput("data/policy", problem, "Use a base model that keeps to the attention mask and to positions")


def _comes_out_packed(model: Model, rows: Sequence[TrainingRow], alone: torch.Tensor) -> bool:
    """Whether packed `rows` have the hidden states `alone`, with attention told of every window of the model.

    Most windows are longer than these rows, whose hidden states would be the same without.
    """
    packed = pack_rows(rows, model.device)
    is_near = _is_near(_run_packed(model, packed), alone)
    return is_near and windows_of(model) <= packed.layout.windows


def _trial_rows(n_known: int) -> list[TrainingRow]:
    """Four rows, of which three would come out otherwise if they saw padding, and three if they saw each other."""

    def ids(first: int, n: int) -> list[int]:
        return [index % n_known for index in range(first, first + n)]

    prompts = [("short", ids(1, 4))] * 3 + [("long", ids(40, 8))]
    return [
        TrainingRow(f"{group_id}/{i}", group_id, prompt, ids(10 + 10 * i, 3), [0.0] * 3, 0.0)
        for i, (group_id, prompt) in enumerate(prompts)
    ]


def _is_near(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether most of these hidden states [T, hidden size] differ by rounding alone.

    Not all: rounding may send a token to another expert.
    """
    off = (ours - theirs).float().norm(dim=1) / theirs.float().norm(dim=1)
    is_near: bool = off.median().item() <= torch.finfo(theirs.dtype).eps ** 0.5
    return is_near
