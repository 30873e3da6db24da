"""Sampling with a decode loop of our own on a transformers model's forward and key-value cache.

Each distinct prompt is run once and its cache is expanded to its completions; rows that are finished leave the batch,
and others take their places; every completion draws from a random stream of its own, so that batching does not change
its randomness (it still changes the last bits of bfloat16 logits).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import transformers

from pipeline.errors import BadInput
from pipeline.params import SamplingParams
from pipeline.policy import Model, not_finite
from pipeline.sampling import Engine, FinishReason, OnProgress, SampledCompletion, SampleRequest
from pipeline.sampling.batch import Batch, Row, places_to_keep
from pipeline.sampling.cache import make_cache
from pipeline.sampling.decode_attention import use_decode_attention
from pipeline.sampling.draw import draw_tokens
from pipeline.sampling.packed_linear import pack_linear_layers
from pipeline.sampling.stopping import StopWatch, make_stops

ENGINE = Engine(
    name="transformers",
    version=f"{transformers.__version__} (torch {torch.__version__})",
    seed_scope="completion",
    is_repeatable=True,
)

MAX_FILLED_FRACTION = 0.75
"""A batch takes in new rows when so much of it is in use, or less: each time, all its rows are copied."""


class TransformersSampler:
    """Samples from `model`, on the device it is on.

    Args:
        model: a causal language model in evaluation mode, which becomes one to sample with alone.
        end_token_ids: tokens that end a completion, beside those of `params`.
        params: temperature, stops, limits and batch size.
        tokenizer: the model's, needed for stop strings alone.
    """

    n_parallel = 1

    def __init__(
        self, model: Model, end_token_ids: Sequence[int], params: SamplingParams, tokenizer: Any = None
    ) -> None:
        self.model = model
        self.params = params
        self.stops = make_stops(params, end_token_ids)
        self.tokenizer = tokenizer
        use_decode_attention(model)
        pack_linear_layers(model)

    def sample(self, requests: Sequence[SampleRequest], on_progress: OnProgress) -> list[list[SampledCompletion]]:
        """For each request, in order, a completion for each of its seeds, in order."""
        found = {
            (row.request, row.place): SampledCompletion(row.token_ids, row.logprobs, reason, row.seed)
            for row, reason in self._decode(requests, on_progress)
        }
        return [[found[i, j] for j in range(len(request.seeds))] for i, request in enumerate(requests)]

    def close(self) -> None:
        """Let go of the model."""
        del self.model

    @torch.inference_mode()
    def _decode(self, requests: Sequence[SampleRequest], on_progress: OnProgress) -> Iterator[tuple[Row, FinishReason]]:
        """The rows of `requests`, each with how it ended, as they end."""
        waiting = deque(self._rows(requests))
        batch: Batch | None = None
        while waiting or batch:
            batch = self._fill(batch, waiting, requests)
            tokens, logprobs = self._draw(batch)
            reasons = batch.record(tokens.tolist(), logprobs.tolist())
            finished = [(row, reason) for row, reason in zip(batch.rows, reasons, strict=True) if reason]
            yield from finished
            on_progress([reason for _, reason in finished], len(tokens))
            places = places_to_keep(reasons)
            if not places:
                batch = None
                continue
            if finished:
                batch.keep(places)
                tokens = tokens[places]
            self._step(batch, tokens)

    def _rows(self, requests: Sequence[SampleRequest]) -> Iterator[Row]:
        """By length of prompt, so that little is padding."""
        for i in sorted(range(len(requests)), key=lambda i: len(requests[i].prompt_token_ids)):
            for place, seed in enumerate(requests[i].seeds):
                stream = np.random.Generator(np.random.Philox(key=seed))
                yield Row(i, place, seed, stream, StopWatch(self.stops, self.tokenizer, requests[i].prompt_token_ids))

    def _fill(self, batch: Batch | None, waiting: deque[Row], requests: Sequence[SampleRequest]) -> Batch:
        """`batch` with the next of the rows that wait, where there is room enough to be worth it."""
        n_rows, most = len(batch.rows) if batch else 0, self.params.max_batch_completions
        if batch and not (waiting and batch.can_grow and n_rows <= MAX_FILLED_FRACTION * most):
            return batch
        new = self._begin([waiting.popleft() for _ in range(min(most - n_rows, len(waiting)))], requests)
        if batch:
            batch.add(new)
        return batch or new

    def _begin(self, rows: list[Row], requests: Sequence[SampleRequest]) -> Batch:
        """Run each prompt of `rows` once."""
        device = self.model.device
        prompts = list(dict.fromkeys(row.request for row in rows))
        ids, mask = _left_pad([requests[i].prompt_token_ids for i in prompts], device)
        cache = make_cache(self.model.config.get_text_config())
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        logits = self._forward(ids, mask, positions, cache)
        order = torch.tensor([prompts.index(row.request) for row in rows], device=device)
        cache.reorder_cache(order)
        return Batch(rows, cache, mask[order], positions[order, -1:], logits[order])

    def _draw(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The next token of each row and its log-probability, both [rows]."""
        early = [place for place, row in enumerate(batch.rows) if not row.watch.may_end]
        if early:
            ends = torch.tensor(sorted(self.stops.end_token_ids), device=batch.logits.device)
            batch.logits[torch.tensor(early, device=batch.logits.device).unsqueeze(1), ends] = -torch.inf
        uniforms = torch.tensor([row.stream.random() for row in batch.rows], dtype=torch.float64)
        tokens, logprobs = draw_tokens(batch.logits, self.params.temperature, uniforms.to(batch.logits.device))
        if not bool(logprobs.isfinite().all()):
            raise not_finite("data/policy")
        return tokens, logprobs

    def _step(self, batch: Batch, tokens: torch.Tensor) -> None:
        """Run `tokens` [rows], so that `batch` has the logits for the next ones."""
        batch.mask = torch.nn.functional.pad(batch.mask, (0, 1), value=1)
        batch.position = batch.position + 1
        batch.logits = self._forward(tokens.unsqueeze(1), batch.mask, batch.position, batch.cache)

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: object) -> torch.Tensor:
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        if output.get("past_key_values") is not cache:
            # A model that keeps its state elsewhere takes our cache without a word and starts anew at every token.
            remedy = "Use a base model whose forward takes `past_key_values`"
            problem = f"a model of type {self.model.config.model_type} takes no key-value cache"
            raise BadInput("data/policy", problem, remedy)
        logits: torch.Tensor = output.logits[:, -1]
        return logits


def _left_pad(prompts: list[list[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask [prompts, longest]; what pads is told by the mask alone, whatever id stands there."""
    longest = max(map(len, prompts))
    ids = torch.zeros((len(prompts), longest), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for i, prompt in enumerate(prompts):
        ids[i, longest - len(prompt) :] = torch.tensor(prompt)
        mask[i, longest - len(prompt) :] = 1
    return ids.to(device), mask.to(device)
