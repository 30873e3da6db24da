"""Policies on disk: ordinary folders that other programs can load, the same bytes for the same weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from pipeline.base_model import VOCABULARIES
from pipeline.errors import BadInput
from pipeline.params import LoraParams
from pipeline.policy import (
    Model,
    copy_policy,
    create_adapter,
    end_token_ids,
    is_adapter,
    load_model,
    load_tokenizer,
    policy_fingerprint,
    resolve_device,
    save_model,
)
from tests.tiny_model import END, build_tiny_model

CPU = torch.device("cpu")
IDS = torch.tensor([[1, 5, 9, 30, 44]])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a repository, the current directory, with a base model in data/base."""
    build_tiny_model(tmp_path / "data" / "base")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def base(root: Path) -> Path:
    return root / "data" / "base"


@pytest.fixture
def adapter(root: Path, base: Path) -> Path:
    """An adapter that changes the base model."""
    create_adapter(base, LoraParams(rank=4), 7, root / "data" / "new")
    model = load_model(root / "data" / "new", base, CPU, torch.float32, is_trainable=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    save_model(model, root / "data" / "policy")
    return root / "data" / "policy"


def logits_of(model: Model) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=IDS).logits
    return logits.float()


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# --- whole models


def test_transformers_loads_a_whole_policy(root: Path, base: Path) -> None:
    model = load_model(base, base, CPU, torch.float32, is_trainable=True)
    save_model(model, root / "policy", tokenizer_from=base)
    shutil.rmtree(base)
    loaded = AutoModelForCausalLM.from_pretrained("policy")
    assert loaded.dtype == torch.bfloat16
    assert torch.allclose(logits_of(loaded), logits_of(model), atol=1e-2)
    tokenizer = AutoTokenizer.from_pretrained("policy")
    assert tokenizer.decode(tokenizer("2+2=4").input_ids) == "2+2=4"
    assert tokenizer.eos_token == END
    assert "<|im_start|>user" in tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)


def test_a_whole_policy_is_saved_in_bfloat16_with_tied_weights_once(root: Path, base: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        save_model(load_model(base, base, CPU, dtype), root / "policy", tokenizer_from=base)
        with safe_open(root / "policy" / "model.safetensors", "pt") as file:
            assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118
            assert "lm_head.weight" not in file.keys()  # noqa: SIM118
        assert json.loads((root / "policy" / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_whole_policy_gets_every_file_of_the_tokenizer(root: Path, base: Path) -> None:
    model = load_model(base, base, CPU)
    for name in (*VOCABULARIES, "merges.txt", "added_tokens.json", "special_tokens_map.json", "chat_template.jinja"):
        (base / name).write_text(f"the content of {name}")
    save_model(model, root / "policy", tokenizer_from=base)
    weights = {"model.safetensors", "config.json", "generation_config.json"}
    expected = {name: content for name, content in files_of(base).items() if name not in weights}
    assert {name: content for name, content in files_of(root / "policy").items() if name not in weights} == expected


def test_saving_leaves_the_masters_as_they_are(root: Path, base: Path) -> None:
    model = load_model(base, base, CPU, torch.float32, is_trainable=True)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    save_model(model, root / "policy")
    assert all(value.dtype == torch.float32 for value in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_the_same_whole_model_is_the_same_bytes(root: Path, base: Path) -> None:
    for name in ("a", "b"):
        save_model(load_model(base, base, CPU, torch.float32), root / name, tokenizer_from=base)
    assert files_of(root / "a") == files_of(root / "b")


def test_precision_and_gradients_are_as_asked(base: Path, adapter: Path) -> None:
    full = load_model(base, base, CPU, torch.float32, is_trainable=True)
    assert {(value.dtype, value.requires_grad) for value in full.parameters()} == {(torch.float32, True)}
    assert {(v.dtype, v.requires_grad) for v in load_model(base, base, CPU).parameters()} == {(torch.bfloat16, False)}
    trained = load_model(adapter, base, CPU, torch.bfloat16, is_trainable=True)
    assert {("lora_" in name, value.dtype, value.requires_grad) for name, value in trained.named_parameters()} == {
        (True, torch.float32, True),
        (False, torch.bfloat16, False),
    }
    frozen = load_model(adapter, base, CPU)
    assert {(value.dtype, value.requires_grad) for value in frozen.parameters()} == {(torch.bfloat16, False)}
    assert not any(module.training for model in (full, trained, frozen) for module in model.modules())


# --- adapters


def test_other_programs_load_an_adapter_from_the_root(base: Path, adapter: Path) -> None:
    ours = logits_of(load_model(adapter, base, CPU, torch.float32))
    by_transformers = AutoModelForCausalLM.from_pretrained("data/policy", dtype=torch.float32)
    assert torch.allclose(logits_of(by_transformers), ours, atol=1e-4)
    whole = AutoModelForCausalLM.from_pretrained("data/base", dtype=torch.float32)
    assert torch.allclose(logits_of(PeftModel.from_pretrained(whole, "data/policy")), ours, atol=1e-4)
    assert not torch.allclose(ours, logits_of(load_model(base, base, CPU, torch.float32)), atol=1e-2)


def test_an_adapter_names_data_base_and_no_path(adapter: Path, root: Path) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "data/base"
    assert config["target_modules"] == sorted(config["target_modules"])
    assert config["inference_mode"] is True
    assert sorted(files_of(adapter)) == ["adapter_config.json", "adapter_model.safetensors"]
    assert not any(str(root).encode() in content for content in files_of(adapter).values())


def test_the_same_adapter_is_the_same_bytes(root: Path, base: Path, adapter: Path) -> None:
    model = load_model(adapter, base, CPU, torch.bfloat16, is_trainable=True)
    # A set of strings has another order in each process; here, the other one.
    config = model.peft_config["default"]
    config.target_modules = sorted(config.target_modules, reverse=True)
    save_model(model, root / "again")
    assert files_of(root / "again") == files_of(adapter)


def test_adapters_are_seeded(root: Path, base: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        create_adapter(base, LoraParams(rank=2), seed, root / name)
    assert files_of(root / "a") == files_of(root / "b") != files_of(root / "c")


def test_the_order_of_target_modules_changes_nothing(root: Path, base: Path) -> None:
    for name, modules in (("a", ["q_proj", "v_proj"]), ("b", ["v_proj", "q_proj"])):
        create_adapter(base, LoraParams(rank=2, target_modules=modules), 1, root / name)
    assert files_of(root / "a") == files_of(root / "b")


def test_a_new_adapter_changes_nothing(root: Path, base: Path) -> None:
    create_adapter(base, LoraParams(rank=4), 7, root / "policy")
    adapted = load_model(root / "policy", base, CPU, torch.float32)
    assert torch.equal(logits_of(adapted), logits_of(load_model(base, base, CPU, torch.float32)))


def test_rank_and_alpha_are_those_of_the_params(root: Path, base: Path) -> None:
    create_adapter(base, LoraParams(rank=3, alpha=12.0, target_modules=["o_proj"]), 7, root / "policy")
    model = load_model(root / "policy", base, CPU, torch.float32, is_trainable=True)
    trained = {name: tuple(v.shape) for name, v in model.named_parameters() if v.requires_grad}
    assert {name.split(".self_attn.")[1]: shape for name, shape in trained.items()} == {
        "o_proj.lora_A.default.weight": (3, 32),
        "o_proj.lora_B.default.weight": (32, 3),
    }
    assert model.base_model.model.model.layers[0].self_attn.o_proj.scaling["default"] == 4.0  # 12 / 3


def test_modules_that_are_not_there_are_named(root: Path, base: Path) -> None:
    with pytest.raises(BadInput, match=r"training.lora.target_modules: .*no_proj.*all-linear"):
        create_adapter(base, LoraParams(target_modules=["no_proj"]), 0, root / "policy")
    assert not (root / "policy").exists()


def test_saving_and_loading_an_adapter_asks_no_hub(root: Path, base: Path, adapter: Path, monkeypatch: Any) -> None:
    """From elsewhere than the root, data/base is not there, and PEFT would look for it on the hub."""
    monkeypatch.chdir(root / "data" / "new")
    monkeypatch.setattr("peft.utils.save_and_load.check_file_exists_on_hf_hub", lambda *_, **__: 1 / 0)
    save_model(load_model(adapter, base, CPU), root / "again")
    assert files_of(root / "again") == files_of(adapter)


# --- fingerprints


def test_fingerprints_change_with_any_byte(base: Path, adapter: Path) -> None:
    found = {policy_fingerprint(adapter, base)}
    for file in (
        adapter / "adapter_config.json",
        adapter / "adapter_model.safetensors",
        base / "model.safetensors",
        base / "config.json",
    ):
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        found.add(policy_fingerprint(adapter, base))
        file.write_bytes(content)
    assert len(found) == 5
    assert policy_fingerprint(adapter, base) in found
    assert all(len(value) == 16 for value in found)


def test_fingerprints_are_of_content_and_not_of_place(root: Path, base: Path, adapter: Path) -> None:
    copy_policy(adapter, root / "elsewhere")
    copy_policy(base, root / "base")
    assert policy_fingerprint(root / "elsewhere", root / "base") == policy_fingerprint(adapter, base)
    (root / "elsewhere" / "adapter_config.json").rename(root / "elsewhere" / "renamed.json")
    assert policy_fingerprint(root / "elsewhere", root / "base") != policy_fingerprint(adapter, base)


def test_the_fingerprint_of_a_whole_policy_is_its_own(base: Path, root: Path) -> None:
    copy_policy(base, root / "policy")
    there = policy_fingerprint(root / "policy", base)
    (base / "config.json").write_text("{}")
    assert policy_fingerprint(root / "policy", base) == there


# --- end tokens


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        (2, 2, [2]),
        ([2, 0], 2, [0, 2]),
        ([7, 5], [5, 9], [2, 5, 7, 9]),
        (None, None, [2]),  # that of the tokenizer
    ],
)
def test_end_tokens_of_every_source_are_united(
    generation: Any, config: Any, expected: list[int], base: Path, adapter: Path
) -> None:
    for policy in (base, adapter):
        model = load_model(policy, base, CPU)
        model.generation_config = GenerationConfig(eos_token_id=generation)
        model.config.eos_token_id = config
        assert end_token_ids(model, load_tokenizer(base)) == expected


def test_no_end_token_is_refused(base: Path) -> None:
    model, tokenizer = load_model(base, base, CPU), load_tokenizer(base)
    model.generation_config = None
    model.config.eos_token_id = tokenizer.eos_token = None
    with pytest.raises(BadInput, match="names an end token"):
        end_token_ids(model, tokenizer)


# --- the head


def test_a_head_fed_a_slice_gives_the_same_logits_from_a_contiguous_copy(base: Path, adapter: Path) -> None:
    hidden = torch.randn(3, 9, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    part = hidden[:, 4:7]
    assert not part.is_contiguous()
    for policy in (base, adapter):
        head = load_model(policy, base, CPU).get_output_embeddings()
        seen: list[bool] = []
        head.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0].is_contiguous()))
        assert torch.equal(head(part), head(part.clone()))
        assert seen == [True, True]


# --- folders


def test_a_policy_is_copied_whole_over_another(root: Path, base: Path, adapter: Path) -> None:
    copy_policy(base, root / "copy")
    copy_policy(adapter, root / "copy")
    assert files_of(root / "copy") == files_of(adapter)
    assert is_adapter(root / "copy")
    assert not is_adapter(base)


def test_a_folder_without_a_model_is_named(root: Path, base: Path) -> None:
    (root / "empty").mkdir()
    message = r"empty: it holds no config.json. Run `dvc repro`"
    with pytest.raises(BadInput, match=message):
        load_model(root / "empty", base, CPU)
    with pytest.raises(BadInput, match=message):
        load_tokenizer(root / "empty")


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def drop_a_layer_norm(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.1.input_layernorm.weight"]


def reshape_a_layer_norm(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.input_layernorm.weight"] = torch.ones(3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_a_layer_norm, r"its weights lack model\.layers\.1\.input_layernorm\.weight \(1 tensors in all\)"),
        (reshape_a_layer_norm, r"it can't be loaded"),
    ],
)
def test_weights_that_are_not_the_whole_model_are_refused(
    change: Callable[[dict[str, torch.Tensor]], object], message: str, base: Path, tmp_path: Path
) -> None:
    shutil.copytree(base, tmp_path / "model")
    change_weights(tmp_path / "model", change)
    with pytest.raises(BadInput, match=message):
        load_model(tmp_path / "model", base, torch.device("cpu"))


def test_garbled_weights_are_named(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "model")
    weights = tmp_path / "model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(BadInput, match=r"model: it can't be loaded"):
        load_model(tmp_path / "model", base, torch.device("cpu"))


def test_an_adapter_without_its_base_is_named(root: Path, adapter: Path) -> None:
    with pytest.raises(BadInput, match=r"it holds no config.json"):
        load_model(adapter, root / "nowhere", CPU)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == CPU
    with pytest.raises(BadInput, match="it says cuda, and torch sees no GPU"):
        resolve_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda")
    assert resolve_device("cpu") == CPU
