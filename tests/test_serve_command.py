"""`rollbook serve`: the command that it becomes."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from pipeline import serving
from pipeline.cli import app
from pipeline.fingerprint import fingerprint_folders
from pipeline.policy import load_tokenizer
from pipeline.table_io import write_table
from pipeline.tables import PROMPTS
from tests.stage_runs import write_params
from tests.tiny_model import CHATML, build_tiny_model

N_PROMPT_TOKENS = 1 + len("user\nSay hi") + 1 + 1 + 1 + len("assistant\n")
"""A token for each special token and each character: 1 + 11 + 1 + 1 + 1 + 10 = 25."""


@pytest.fixture(autouse=True)
def _in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serving, "is_for_cpu", lambda: False)
    build_tiny_model(Path("data/base"))
    messages = [{"role": "user", "content": "Say hi"}]
    row = {"prompt_id": "00ff", "split": "train", "source": "s", "messages": messages, "verifier": "none"}
    empty = {"answer": None, "metadata": None}
    write_table(pl.DataFrame([row | empty], schema=PROMPTS.schema), Path("data/prompts.parquet"), PROMPTS)
    write(**{})


def write(**changes: Any) -> None:
    given = {"engine": "server", "max_completion_tokens": 16, "server": {"urls": ["http://h:8000"]}}
    write_params(Path(), {"sampling": given} | {key.replace("__", "."): value for key, value in changes.items()})


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["serve", *arguments])


def dry_run(*arguments: str) -> list[str]:
    result = run("--dry-run", *arguments)
    assert result.exit_code == 0, result.output
    return shlex.split(result.output)


def value_of(flag: str, words: list[str]) -> str:
    return words[words.index(flag) + 1]


def test_an_adapter_is_served_on_the_base_by_its_fingerprint() -> None:
    words = dry_run("--port", "8100", "--max-num-batched-tokens", "4096")
    assert words[words.index("serve") + 1] == str(Path("data/base").absolute())
    assert value_of("--served-model-name", words) == f"rollbook-{fingerprint_folders(Path('data/base'))}"
    assert value_of("--max-model-len", words) == str(N_PROMPT_TOKENS + 16)
    assert value_of("--max-lora-rank", words) == "16"
    assert value_of("--logprobs-mode", words) == "processed_logprobs"
    assert value_of("--generation-config", words) == "vllm"
    assert value_of("--shutdown-timeout", words) == "60"
    assert value_of("--host", words) == "127.0.0.1"
    assert value_of("--port", words) == "8100"
    assert words[-2:] == ["--max-num-batched-tokens", "4096"]
    assert {"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "--enable-lora", "--enable-prefix-caching"} <= set(words)
    assert not any("VLLM_SERVER_DEV_MODE" in word for word in words)


def test_there_is_room_for_what_the_switches_of_the_template_add() -> None:
    tokenizer = load_tokenizer(Path("data/base"))
    tokenizer.chat_template = CHATML + "{% if add_generation_prompt and thinks %}{{ 'think\n' }}{% endif %}"
    tokenizer.save_pretrained("data/base")
    assert value_of("--max-model-len", dry_run()) == str(N_PROMPT_TOKENS + 16)
    write(sampling__chat_template_kwargs={"thinks": True})
    assert value_of("--max-model-len", dry_run()) == str(N_PROMPT_TOKENS + len("think\n") + 16)


def test_a_whole_model_is_served_so_that_its_weights_can_be_exchanged() -> None:
    build_tiny_model(Path("data/policy"))
    write(training__method="full", sampling__vllm={"tensor_parallel_size": 2, "kv_cache_gib": 0.5})
    words = dry_run()
    assert words[words.index("serve") + 1] == str(Path("data/policy").absolute())
    assert value_of("--served-model-name", words) == "rollbook"
    assert value_of("--tensor-parallel-size", words) == "2"
    assert value_of("--kv-cache-memory-bytes", words) == str(2**29)
    assert "VLLM_SERVER_DEV_MODE=1" in words
    assert "--enable-lora" not in words


def test_the_process_becomes_that_of_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(os, "execvpe", lambda *given: started.append(given))
    program = tmp_path / "bin/vllm"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    monkeypatch.setenv("ROLLBOOK_TEST_KEY", "secret")
    write(sampling__server={"urls": ["http://h:8000"], "api_key_variable": "ROLLBOOK_TEST_KEY"})
    assert run().exit_code == 0
    ((file, words, environment),) = started
    assert (file, words[:2]) == (str(program), [str(program), "serve"])
    assert environment["VLLM_API_KEY"] == "secret"
    assert environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert environment["PATH"] == os.environ["PATH"]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    result = run()
    assert result.exit_code == 1
    assert "vllm: there is no such program" in result.output
    Path("data/prompts.parquet").unlink()
    result = run("--dry-run")
    assert result.exit_code == 1
    assert "data/prompts.parquet" in result.output


def test_a_model_that_is_not_there_or_too_small_is_named() -> None:
    write(training__method="full")
    assert "data/policy: it holds no config.json" in run("--dry-run").output
    write(sampling__max_completion_tokens=512)
    result = run("--dry-run")
    assert result.exit_code == 1
    assert "a prompt of 25 tokens and 512 new ones make 537, and the model has 512" in result.output


def test_a_cpu_server_is_not_started_for_seeds_that_kill_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "is_for_cpu", lambda: True)
    result = run("--dry-run")
    assert result.exit_code == 1
    assert "sampling.server.per_completion_seeds" in result.output
    write(sampling__server={"urls": ["http://h:8000"], "per_completion_seeds": False})
    words = dry_run()
    assert "--gpu-memory-utilization" not in words
    assert value_of("--kv-cache-memory-bytes", words) == str(4 * 2**30)
    assert value_of("--model", words) == str(Path("data/base").absolute())


def test_a_rank_beyond_those_of_vllm_is_named() -> None:
    write(training__lora={"rank": 600, "alpha": 8.0})
    result = run("--dry-run")
    assert result.exit_code == 1
    assert "params.yaml: training.lora.rank: 600 is more than vLLM takes, 512" in result.output
