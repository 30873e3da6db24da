"""The sides of the sampling benchmark: what samples the same work with the same base model.

A side is opened once and then samples again and again. One more is an entry in `SIDES`; what it needs is imported only
where it is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from pipeline.params import SamplingParams
from pipeline.policy import load_model, load_tokenizer
from pipeline.sampling import SampleRequest
from pipeline.sampling.transformers_sampler import TransformersSampler
from tests.benchmarks.vllm_sides import open_bare, open_vllm

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Work:
    """Prompts as token ids, and how many completions of exactly how many tokens each gets."""

    prompts: list[list[int]]
    n_completions: int
    n_tokens: int

    @property
    def n_rows(self) -> int:
        """Completions in all."""
        return len(self.prompts) * self.n_completions

    @property
    def requests(self) -> list[SampleRequest]:
        """The same for our engines, with a seed for each completion."""
        count = self.n_completions
        return [SampleRequest(prompt, list(range(i * count, (i + 1) * count))) for i, prompt in enumerate(self.prompts)]

    @property
    def params(self) -> SamplingParams:
        """All completions in one batch."""
        return SamplingParams(max_completion_tokens=self.n_tokens, max_batch_completions=self.n_rows)


Side = Callable[[Work], int]
"""Samples the work, and says how many tokens that were."""


def open_rollbook(base: Path) -> Side:
    """Our sampler on transformers; no token ends a completion."""
    model = load_model(base, base, CPU)

    def run(work: Work) -> int:
        groups = TransformersSampler(model, [], work.params).sample(work.requests, lambda _reasons, _tokens: None)
        return sum(len(row.token_ids) for group in groups for row in group)

    return run


def open_generate(base: Path, has_logprobs: bool = False) -> Side:
    """`generate` of transformers: the whole distribution, in bfloat16 with its cache, and without what it can spare.

    With `has_logprobs` it keeps the logits of all tokens, as it must to give their log-probabilities.
    """
    model, tokenizer = load_model(base, base, CPU), load_tokenizer(base)
    model.generation_config.eos_token_id = None  # no token ends a completion, and none is looked for
    options: dict[str, Any] = {"do_sample": True, "top_k": 0, "use_cache": True, "pad_token_id": 0}
    if has_logprobs:
        options |= {"return_dict_in_generate": True, "output_logits": True}

    @torch.inference_mode()
    def run(work: Work) -> int:
        padded = tokenizer.pad({"input_ids": work.prompts}, padding_side="left", return_tensors="pt")
        found = model.generate(
            **padded, **options, num_return_sequences=work.n_completions, max_new_tokens=work.n_tokens
        )
        if has_logprobs:
            model.compute_transition_scores(found.sequences, found.logits, normalize_logits=True)
            found = found.sequences
        return int(found[:, padded["input_ids"].shape[1] :].numel())

    return run


SIDES: dict[str, Callable[[Path], Side]] = {
    "rollbook": open_rollbook,
    "generate": open_generate,
    "generate-logprobs": lambda base: open_generate(base, has_logprobs=True),
    **({"vllm": open_vllm, "vllm-generate": open_bare} if find_spec("vllm") else {}),
}
"""Each side by its name, opened with the folder of the base model; those of vLLM where it is installed."""

MOST_LOGITS = 1 << 30
"""Of `generate-logprobs`, which holds them all: 4 GB in float32."""


def can_run(side: str, work: Work, n_vocabulary: int) -> bool:
    """Whether the machine has the memory that `side` needs for the work."""
    return side != "generate-logprobs" or work.n_rows * work.n_tokens * n_vocabulary <= MOST_LOGITS
