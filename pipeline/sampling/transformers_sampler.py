"""Sampling with a decode loop of our own on a transformers model's forward and key-value cache.

Each distinct prompt of a batch is run once and its cache is expanded to its completions; rows that are finished
leave the batch; every completion draws from a random stream of its own, so that batching does not change its
randomness (it still changes the last bits of bfloat16 logits).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import transformers

from pipeline.errors import BadInput
from pipeline.params import SamplingParams
from pipeline.policy import Model
from pipeline.sampling import Engine, FinishReason, OnProgress, SampledCompletion, SampleRequest
from pipeline.sampling.decode_attention import make_cache, use_decode_attention
from pipeline.sampling.draw import draw_tokens

ENGINE = Engine(
    name="transformers",
    version=f"{transformers.__version__} (torch {torch.__version__})",
    seed_scope="completion",
    is_repeatable=True,
)


@dataclass
class _Row:
    """A completion in the making."""

    request: int
    place: int
    seed: int
    stream: np.random.Generator
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


_Finished = tuple[_Row, FinishReason]


class TransformersSampler:
    """Samples from `model`, on the device it is on.

    Args:
        model: a causal language model in evaluation mode.
        end_token_ids: tokens that end a completion.
        params: temperature, limits and batch size.
    """

    n_parallel = 1

    def __init__(self, model: Model, end_token_ids: Sequence[int], params: SamplingParams) -> None:
        self.model = model
        self.end_token_ids = frozenset(end_token_ids)
        self.params = params
        use_decode_attention(model)

    def sample(self, requests: Sequence[SampleRequest], on_progress: OnProgress) -> list[list[SampledCompletion]]:
        """For each request, in order, a completion for each of its seeds, in order."""
        self._check_lengths(requests)
        found: dict[tuple[int, int], SampledCompletion] = {}
        for rows in _batches(requests, self.params.max_batch_completions):
            for row, finish_reason in self._sample_batch(requests, rows, on_progress):
                completion = SampledCompletion(row.token_ids, row.logprobs, finish_reason, row.seed)
                found[row.request, row.place] = completion
        return [[found[i, j] for j in range(len(request.seeds))] for i, request in enumerate(requests)]

    def close(self) -> None:
        """Let go of the model."""
        del self.model

    @torch.inference_mode()
    def _sample_batch(
        self, requests: Sequence[SampleRequest], rows: list[_Row], on_progress: OnProgress
    ) -> Iterator[_Finished]:
        device = self.model.device
        prompts = list(dict.fromkeys(row.request for row in rows))
        ids, mask = _left_pad([requests[i].prompt_token_ids for i in prompts], device)
        cache = make_cache(self.model.config.get_text_config(), ids.shape[1] + self.params.max_completion_tokens)
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        logits = self._forward(ids, mask, positions, cache)
        expand = torch.tensor([prompts.index(row.request) for row in rows], device=device)
        cache.reorder_cache(expand)  # the one selection of rows that every kind of cache layer has
        logits, mask, position = logits[expand], mask[expand], positions[expand, -1:]
        while rows:
            uniforms = torch.tensor([row.stream.random() for row in rows], dtype=torch.float64, device=device)
            tokens, logprobs = draw_tokens(logits, self.params.temperature, uniforms)
            rows, keep, finished = self._settle(rows, tokens.tolist(), logprobs.tolist())
            yield from finished
            on_progress([reason for _, reason in finished], len(tokens))
            if finished and rows:
                order = torch.tensor(keep, device=device)
                cache.reorder_cache(order)
                tokens, mask, position = tokens[order], mask[order], position[order]
            if rows:
                mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
                position = position + 1
                logits = self._forward(tokens.unsqueeze(1), mask, position, cache)

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
        if not bool(logits.amax(dim=-1).isfinite().all()):  # -inf at some tokens is a model's right
            remedy = "Look at data/train_steps.parquet of the iteration that made it; lower the learning rate"
            raise BadInput("data/policy", "the policy gives logits that are not finite", remedy)
        return logits

    def _settle(
        self, rows: list[_Row], tokens: list[int], logprobs: list[float]
    ) -> tuple[list[_Row], list[int], list[_Finished]]:
        """Record the drawn tokens; part the rows into those that go on and those that are finished.

        The rows that go on fill the first places, the last ones moving into the gaps, so that few rows of the
        cache are copied; `keep` says which old row each place now holds.
        """
        finished: list[_Finished] = []
        going: list[int] = []
        for place, (row, token, logprob) in enumerate(zip(rows, tokens, logprobs, strict=True)):
            row.token_ids.append(token)
            row.logprobs.append(logprob)
            if token in self.end_token_ids:
                finished.append((row, "stop"))
            elif len(row.token_ids) == self.params.max_completion_tokens:
                finished.append((row, "length"))
            else:
                going.append(place)
        movers = iter(sorted((place for place in going if place >= len(going)), reverse=True))
        staying = {place for place in going if place < len(going)}
        keep = [place if place in staying else next(movers) for place in range(len(going))]
        return [rows[place] for place in keep], keep, finished

    def _check_lengths(self, requests: Sequence[SampleRequest]) -> None:
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        longest = max((len(request.prompt_token_ids) for request in requests), default=0)
        needed = longest + self.params.max_completion_tokens
        if limit is not None and needed > limit:
            problem = f"a prompt of {longest} tokens and {self.params.max_completion_tokens} new "
            problem += f"ones make {needed}, and the model has {limit} positions"
            raise BadInput("params.yaml: sampling.max_completion_tokens", problem, "Lower it, or drop long prompts")


def _batches(requests: Sequence[SampleRequest], max_rows: int) -> Iterator[list[_Row]]:
    """Rows by length of prompt, so that little is padding, at most `max_rows` at a time."""
    by_length = sorted(range(len(requests)), key=lambda i: len(requests[i].prompt_token_ids))
    batch: list[_Row] = []
    for i in by_length:
        for place, seed in enumerate(requests[i].seeds):
            batch.append(_Row(i, place, seed, np.random.Generator(np.random.Philox(key=seed))))
            if len(batch) == max_rows:
                yield batch
                batch = []
    if batch:
        yield batch


def _left_pad(prompts: list[list[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask [prompts, longest]; what pads is told by the mask alone, whatever id stands there."""
    longest = max(map(len, prompts))
    ids = torch.zeros((len(prompts), longest), dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for i, prompt in enumerate(prompts):
        ids[i, longest - len(prompt) :] = torch.tensor(prompt)
        mask[i, longest - len(prompt) :] = 1
    return ids.to(device), mask.to(device)
