"""Policies on disk and in memory: ordinary Hugging Face folders, or PEFT adapters on `data/base`.

The only loader of weights. Adapters are written so that equal adapters are equal bytes: PEFT's own files list
modules in set order and hold paths.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils import GENERATION_CONFIG_NAME
from transformers.utils import logging as transformers_logging

from pipeline.errors import BadInput, first_line
from pipeline.fingerprint import fingerprint_folders
from pipeline.params import LoraParams
from pipeline.table_io import atomic_path, write_json

ADAPTER_CONFIG = "adapter_config.json"
BASE_IN_ADAPTERS = "data/base"
"""What adapters name as their base: it resolves from the root of the repository."""

FILES_BESIDE_WEIGHTS = (
    "tokenizer*",
    "chat_template*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.py",
)
"""Patterns of the tokenizer's files in a Hugging Face folder (`*.model` is a SentencePiece vocabulary), and of code."""

Model = Any
"""A transformers or PEFT causal language model; neither library types its forward call."""

transformers_logging.disable_progress_bar()


def resolve_device(device: str) -> torch.device:
    """`auto` is the GPU where there is one; `cuda` without one is a `BadInput`."""
    if device == "cuda" and not torch.cuda.is_available():
        raise BadInput("params.yaml: device", "it says cuda, and torch sees no GPU", "Set it to auto or cpu")
    return torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")


def load_tokenizer(base: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of the base model, which every policy shares."""
    _check_folder(base, "config.json")
    with _named_if_damaged(base):
        return AutoTokenizer.from_pretrained(base, trust_remote_code=_has_code(base))


def is_adapter(policy: Path) -> bool:
    """Whether the folder holds a PEFT adapter rather than a whole model."""
    return (policy / ADAPTER_CONFIG).is_file()


def load_model(
    policy: Path, base: Path, device: torch.device, dtype: torch.dtype = torch.bfloat16, is_trainable: bool = False
) -> Model:
    """The model in `policy`, in `dtype`, in evaluation mode (no dropout: a ratio of 1 must be 1).

    An adapter is put on the model in `base`; with `is_trainable` its weights are float32 and require gradients,
    else they are `dtype`. A whole model's weights are `dtype`, and require gradients with `is_trainable`.
    """
    _check_folder(policy, ADAPTER_CONFIG if is_adapter(policy) else "config.json")
    model = _load_whole(whole_model(policy, base), dtype)
    if is_adapter(policy):
        from peft import PeftModel

        with _named_if_damaged(policy):
            model = PeftModel.from_pretrained(model, str(policy), is_trainable=is_trainable)
        if not is_trainable:
            model = model.to(dtype)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.requires_grad and is_trainable)
    _make_head_input_contiguous(model)
    return model.to(device).eval()


def create_adapter(base: Path, lora: LoraParams, seed: int, policy: Path) -> None:
    """Write a new adapter, which changes nothing yet (its B is zero), to the folder `policy`."""
    from peft import LoraConfig, get_peft_model

    model = _load_whole(base, torch.bfloat16)
    torch.manual_seed(seed)
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=lora.target_modules, lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    try:
        adapted = get_peft_model(model, config)
    except ValueError as error:
        remedy = "Name modules of the model, or use all-linear"
        raise BadInput("params.yaml: training.lora.target_modules", str(error).splitlines()[0], remedy) from error
    save_model(adapted, policy)


def save_model(
    model: Model,
    policy: Path,
    tokenizer_from: Path | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write `model` to the folder `policy` in bfloat16, whole or not at all, as the same bytes for the same weights.

    `tokenizer_from` is the folder whose tokenizer files a whole model gets, so that it can be used on its own.
    `weights` are those of `model` where it has only a share of them itself.
    """
    with atomic_path(policy) as folder:
        state = _bfloat16_state(model.state_dict() if weights is None else weights)
        if hasattr(model, "peft_config"):
            from peft import get_peft_model_state_dict

            adapter = get_peft_model_state_dict(model, state_dict=state, save_embedding_layers=False)
            assert adapter, "an adapter without weights"
            # Embeddings are never trained whole; left to itself, PEFT asks the hub whether they were resized.
            model.save_pretrained(folder, state_dict=state, selected_adapters=["default"], save_embedding_layers=False)
            _tidy_adapter(folder)
        else:
            model.save_pretrained(folder, state_dict=state)
            config = json.loads((folder / "config.json").read_text())
            write_json({**config, "dtype": "bfloat16"}, folder / "config.json")
            _copy_files_beside_weights(tokenizer_from, folder)


def not_finite(policy: str) -> BadInput:
    """The error where the policy called `policy` gives logits that are not finite."""
    remedy = "Look at data/train_steps.parquet of the iteration that made it; lower the learning rate"
    return BadInput(policy, "the policy gives logits that are not finite", remedy)


def copy_policy(source: Path, target: Path) -> None:
    """Copy the policy folder `source` to `target`, whole or not at all."""
    with atomic_path(target) as folder:
        shutil.copytree(source, folder)


def whole_model(policy: Path, base: Path) -> Path:
    """The folder of the whole model that `policy` is, or that it is an adapter of."""
    return base if is_adapter(policy) else policy


def policy_fingerprint(policy: Path, base: Path) -> str:
    """16 hexadecimal digits of the SHA-256 of every file that makes the policy what it is."""
    return fingerprint_folders(policy, base) if is_adapter(policy) else fingerprint_folders(policy)


def end_token_ids(model: Model, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every token that ends a completion: a model may have several (`<|im_end|>` and `<|endoftext|>`, say)."""
    return _end_token_ids(getattr(model, "generation_config", None), model.config, tokenizer)


def stored_end_token_ids(folder: Path, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """`end_token_ids` of the whole model in `folder`, without loading its weights."""
    has_generation_config = (folder / GENERATION_CONFIG_NAME).is_file()
    generation = GenerationConfig.from_pretrained(folder) if has_generation_config else None
    return _end_token_ids(generation, load_config(folder), tokenizer)


def load_config(folder: Path) -> PreTrainedConfig:
    """The configuration of the whole model in `folder`."""
    _check_folder(folder, "config.json")
    with _named_if_damaged(folder):
        return AutoConfig.from_pretrained(folder, trust_remote_code=_has_code(folder), local_files_only=True)


def _end_token_ids(generation: Any, config: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    found: set[int] = set()
    for value in (getattr(generation, "eos_token_id", None), config.eos_token_id, tokenizer.eos_token_id):
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    if not found:
        raise BadInput(BASE_IN_ADAPTERS, "neither the model nor the tokenizer names an end token", "Set eos_token_id")
    return sorted(found)


def _check_folder(folder: Path, file: str) -> None:
    if not (folder / file).is_file():
        raise BadInput(str(folder), f"it holds no {file}", "Run `dvc repro` to make the folder again")


def _has_code(folder: Path) -> bool:
    """Whether a model brings code of its own: it is in the folder only where `base_model.trust_remote_code` put it."""
    return any(folder.glob("*.py"))


def _load_whole(folder: Path, dtype: torch.dtype) -> Model:
    _check_folder(folder, "config.json")
    with _named_if_damaged(folder):
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=_has_code(folder),
            local_files_only=True,
            output_loading_info=True,
        )
    missing = sorted(info["missing_keys"])
    if missing:
        # transformers would draw them at random, anew in each process.
        problem = f"its weights lack {missing[0]} ({len(missing)} tensors in all)"
        raise BadInput(str(folder), problem, "Give a whole causal language model as base_model")
    keep_score_cap(model)
    return model


def keep_score_cap(model: Model) -> None:
    """Have a model that caps its attention scores do so: torch's fused kernel, the default, leaves the cap out."""
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")


@contextmanager
def _named_if_damaged(folder: Path) -> Iterator[None]:
    """Turn what libraries raise on a file that is cut, garbled or of another shape into a `BadInput`.

    A JSON error is a ValueError, and transformers raises RuntimeError for tensors of another shape.
    """
    try:
        yield
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        remedy = "Restore it with `dvc checkout`, or run the stage that makes it again"
        raise BadInput(str(folder), f"it can't be loaded ({first_line(error)})", remedy) from error


def _bfloat16_state(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """`weights` in bfloat16 on the CPU; tied ones stay one tensor, which transformers then writes once."""
    copies: dict[tuple[int, torch.Size], torch.Tensor] = {}
    state: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        place = weight.data_ptr(), weight.shape
        if place not in copies:
            copies[place] = weight.detach().to(torch.bfloat16).cpu()
        state[name] = copies[place]
    return state


def _make_head_input_contiguous(model: Model) -> None:
    """Keep the head's matmul one matmul.

    The head gets a slice of the hidden states. For a slice that is not contiguous and a weight that needs no
    gradient, torch turns the product into a batched one, and copies the head's weight once per row.
    """
    head = model.get_output_embeddings()
    if head is not None:
        head.register_forward_pre_hook(lambda _module, inputs: (inputs[0].contiguous(), *inputs[1:]))


def _tidy_adapter(folder: Path) -> None:
    config = json.loads((folder / ADAPTER_CONFIG).read_text())
    for key, value in config.items():
        if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            config[key] = sorted(value)
    config["base_model_name_or_path"] = BASE_IN_ADAPTERS
    config["inference_mode"] = True
    write_json(config, folder / ADAPTER_CONFIG)
    (folder / "README.md").unlink(missing_ok=True)


def _copy_files_beside_weights(source: Path | None, folder: Path) -> None:
    for pattern in FILES_BESIDE_WEIGHTS:
        for file in sorted(source.glob(pattern)) if source else []:
            shutil.copyfile(file, folder / file.name)
