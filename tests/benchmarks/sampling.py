"""The sampler beside `generate` of transformers: the base model, 16 prompts x 8 completions of exactly 16 tokens."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import torch

from pipeline.params import load_params
from pipeline.policy import load_model, load_tokenizer
from pipeline.rollouts import make_requests, tokenize_prompts
from pipeline.sampling.transformers_sampler import TransformersSampler
from tests.benchmarks.compare import in_turn, need, show

N_TOKENS = 16


def main(rounds: int = 3) -> None:
    """Both sample the same number of tokens: no end token stops either."""
    need(["data/base", "data/prompts.parquet"])
    base = Path("data/base")
    tokenizer = load_tokenizer(base)
    prompts = pl.read_parquet("data/prompts.parquet").head(16)
    token_ids = tokenize_prompts(prompts, tokenizer)
    params = load_params().sampling.model_copy(update={"max_completion_tokens": N_TOKENS})
    device = torch.device("cpu")
    ours = TransformersSampler(load_model(base, base, device), [-1], params)
    requests = make_requests(prompts["prompt_id"].to_list(), token_ids, 8, 0)
    theirs = load_model(base, base, device)
    padded = tokenizer.pad({"input_ids": token_ids}, padding_side="left", return_tensors="pt")

    def generate() -> None:
        with torch.inference_mode():
            theirs.generate(
                **padded,
                do_sample=True,
                top_k=0,
                num_return_sequences=8,
                min_new_tokens=N_TOKENS,
                max_new_tokens=N_TOKENS,
            )

    functions = {"generate": generate, "our sampler": lambda: ours.sample(requests, lambda _done, _tokens: None)}
    show("sampling 128 x 16 tokens", in_turn(functions, rounds), "generate")
