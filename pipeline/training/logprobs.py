"""Log-probabilities of completions under a model, at completion positions only."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pipeline.policy import Model
from pipeline.training.batching import Batch


class TokenStatistics(NamedTuple):
    """Per completion token [B, C], in nats: its log-probability, and the entropy of the whole distribution there.

    The entropy carries no gradient. Values at padding mean nothing.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor


def completion_statistics(model: Model, batch: Batch, temperature: float) -> TokenStatistics:
    """Run `model` on `batch`; the head sees only the positions that predict a completion token.

    Logits are divided by `temperature`, since that is the distribution the completions were drawn from.
    """
    n_completion = batch.completion_ids.shape[1]
    with torch.autocast(batch.input_ids.device.type, dtype=torch.bfloat16):
        output = model(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            use_cache=False,
            logits_to_keep=n_completion + 1,
        )
    return token_statistics(output.logits[:, :-1], batch.completion_ids, temperature)


def token_statistics(logits: torch.Tensor, token_ids: torch.Tensor, temperature: float) -> TokenStatistics:
    """Statistics of `token_ids` [..., C] under `logits` [..., C, vocabulary], computed in float32.

    >>> statistics = token_statistics(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), temperature=0.6)
    >>> round(statistics.logprobs.item(), 6)
    -0.035052
    """
    scaled = logits.float() / temperature
    log_total = scaled.logsumexp(dim=-1)
    logprobs = scaled.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1) - log_total
    with torch.no_grad():
        # 0 times a logit of -inf is 0 here, a token that can't be.
        finite = scaled.clamp(min=torch.finfo(scaled.dtype).min)
        expected = (torch.softmax(scaled, dim=-1) * finite).sum(dim=-1)
        entropy = log_total.detach() - expected
    return TokenStatistics(logprobs, entropy)
