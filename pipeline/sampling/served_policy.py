"""The policy that servers are to have: its names, a folder of it that stays as it is, and a probe to know it by."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.fingerprint import fingerprint_folders
from pipeline.params import ServerParams
from pipeline.policy import is_adapter, load_model, not_finite, policy_fingerprint
from pipeline.sampling.served_names import WHOLE_MODEL, name_of
from pipeline.table_io import atomic_path, write_json

SERVED = Path(".rollbook/served")

MAX_PROBE_TOKENS = 256
PROBE = [
    {"role": "user", "content": "What is 7 times 8, and what is 17 + 25?"},
    {"role": "assistant", "content": "7 times 8 is 56, and 17 + 25 = 42. The answers are 56 and \\boxed{42}."},
    {"role": "user", "content": "Write a Python function that says whether a number is even."},
    {"role": "assistant", "content": "def is_even(n):\n    return n % 2 == 0\n\nFor example, is_even(4) is True."},
]
"""A chat of the kind that policies are trained on, whose log-probabilities move when a policy does."""


@dataclass(frozen=True)
class Probe:
    """Tokens, and the policy's log-probability of each but the first, in nats."""

    token_ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True)
class ServedPolicy:
    """A policy as servers have it.

    `name` is what is asked for, and `base_name` what an adapter is put on, None for a whole model. `folder` is where
    servers find it. A server needs room for prompts and completions of `n_positions` tokens.
    """

    fingerprint: str
    name: str
    base_name: str | None
    folder: str
    probe: Probe
    n_positions: int


def prepare_policy(policy: Path, base: Path, tokenizer: Any, params: ServerParams, n_positions: int) -> ServedPolicy:
    """The policy in the folder `policy`, ready to be served."""
    fingerprint = policy_fingerprint(policy, base)
    _forget_others(fingerprint)
    is_lora = is_adapter(policy)
    # A server reads an adapter again when its memory of adapters is full: in data/policy another one might lie by then.
    folder = _keep_copy(policy, SERVED / fingerprint / "policy") if is_lora else policy
    return ServedPolicy(
        fingerprint=fingerprint,
        name=name_of(fingerprint) if is_lora else WHOLE_MODEL,
        base_name=name_of(fingerprint_folders(base)) if is_lora else None,
        folder=os.path.normpath(Path(params.project_path or Path.cwd()) / os.path.relpath(folder)),
        probe=_find_probe(policy, base, probe_tokens(tokenizer, n_positions), SERVED / fingerprint / "probe.json"),
        n_positions=n_positions,
    )


def probe_tokens(tokenizer: Any, n_positions: int) -> list[int]:
    """The tokens of the probe, few enough for a server with room for `n_positions`, of which one is drawn."""
    ids: list[int] = tokenizer.apply_chat_template(PROBE, tokenize=True, return_dict=False)
    return ids[: min(MAX_PROBE_TOKENS, n_positions - 1)]


@torch.inference_mode()
def compute_logprobs(policy: Path, base: Path, token_ids: list[int]) -> list[float]:
    """The policy's log-probability of each of `token_ids` but the first, in nats, computed on the CPU.

    On the CPU, since the GPUs of this machine may be full of the servers' own.
    """
    ids = torch.tensor([token_ids])
    logits = load_model(policy, base, torch.device("cpu"))(input_ids=ids).logits[0, :-1].float()
    logprobs = logits.log_softmax(dim=-1).gather(1, ids[0, 1:, None])[:, 0]
    if not bool(logprobs.isfinite().all()):
        raise not_finite(str(policy))
    return [float(logprob) for logprob in logprobs]


def _find_probe(policy: Path, base: Path, token_ids: list[int], file: Path) -> Probe:
    """The probe that `file` holds for these tokens; computed, and put there, where it holds none."""
    kept = _read_probe(file)
    if kept is not None and kept.token_ids == token_ids:
        return kept
    probe = Probe(token_ids, compute_logprobs(policy, base, token_ids))
    write_json(vars(probe), file)
    return probe


def _read_probe(file: Path) -> Probe | None:
    """The probe that `file` holds; None where there is none, or it is damaged."""
    try:
        return Probe(**json.loads(file.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _keep_copy(policy: Path, copy: Path) -> Path:
    """`copy`, with what the folder `policy` holds in it."""
    if not copy.is_dir() or fingerprint_folders(copy) != fingerprint_folders(policy):
        with atomic_path(copy) as folder:
            shutil.copytree(policy, folder)
    return copy


def _forget_others(fingerprint: str) -> None:
    for folder in SERVED.glob("*"):
        if folder.name != fingerprint:
            shutil.rmtree(folder)
