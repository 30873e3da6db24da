"""From prompts to rows of rollouts: tokens, seeds, ids, texts and counts; and the stage that puts it together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch
from jinja2 import TemplateError

from pipeline.errors import BadInput
from pipeline.policy import end_token_ids, load_model, load_tokenizer, policy_fingerprint
from pipeline.rollouts import completion_rows, group_id, make_requests, rollout_metrics, tokenize_prompts
from pipeline.sampling import SampledCompletion, SampleRequest
from pipeline.seeds import stable_seed
from pipeline.table_checks import check_order, check_schema, check_table
from pipeline.table_io import read_table, table_metadata, write_table
from pipeline.tables import PROMPTS, ROLLOUTS, SELECTION
from stages.rollout import rollout
from tests import threads
from tests.bpe_tokenizer import SWITCHED_REASONING, build_bpe_tokenizer
from tests.stage_runs import Ended, run_here, write_params
from tests.tiny_model import END, SPECIAL_TOKENS, START, build_tiny_model

UNKNOWN_ID, START_ID, END_ID = range(3)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    build_tiny_model(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(base: Path) -> Any:
    return load_tokenizer(base)


def prompts_of(*contents: str) -> pl.DataFrame:
    """A row per content, `p0`, `p1`, ..."""
    rows = [
        {
            "prompt_id": f"p{i}",
            "split": "train",
            "source": "file",
            "messages": [{"role": "user", "content": content}],
            "answer": "1",
            "verifier": "math",
            "metadata": None,
        }
        for i, content in enumerate(contents)
    ]
    return pl.DataFrame(rows, schema=PROMPTS.schema)


# Tokens and seeds -----------------------------------------------------------------------------------------------------


def test_a_prompt_goes_through_the_chat_template_to_where_the_answer_begins(tokenizer: Any) -> None:
    (ids,) = tokenize_prompts(prompts_of("2+2?"), tokenizer)
    assert tokenizer.decode(ids) == f"{START}user\n2+2?{END}\n{START}assistant\n"
    assert ids[0] == START_ID
    assert END_ID in ids
    assert len(ids) == 1 + len("user\n2+2?") + 1 + 1 + 1 + len("assistant\n")


def test_a_system_message_comes_first(tokenizer: Any) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    prompts = prompts_of("x").with_columns(messages=pl.Series([chat], dtype=PROMPTS.schema["messages"]))
    (ids,) = tokenize_prompts(prompts, tokenizer)
    assert tokenizer.decode(ids).startswith(f"{START}system\nBe brief.{END}\n{START}user\nHi{END}")


def test_a_template_may_open_a_reasoning_block_and_the_completion_begins_in_it() -> None:
    reasoning = build_bpe_tokenizer()
    (ids,) = tokenize_prompts(prompts_of("3 times 4?"), reasoning)
    assert reasoning.decode(ids).endswith("assistant\n<think>\n")
    completion = SampledCompletion(reasoning.encode("3 times 4 is 12 </think> 12"), [-1.0] * 7, "stop", 0)
    rows = completion_rows(["p"], [SampleRequest(ids, [0])], [[completion]], reasoning, 0)
    assert rows["completion_text"].item() == "3 times 4 is 12 </think> 12"


def test_switches_of_a_template_reach_it() -> None:
    reasoning = build_bpe_tokenizer()
    reasoning.chat_template = SWITCHED_REASONING
    thinking, hurried = (
        reasoning.decode(tokenize_prompts(prompts_of("3?"), reasoning, {"enable_thinking": value})[0])
        for value in (True, False)
    )
    assert hurried == f"{thinking}<think>\n\n</think>\n\n"
    assert thinking == reasoning.decode(tokenize_prompts(prompts_of("3?"), reasoning)[0])


def test_a_switch_that_a_template_does_not_have_is_named(tokenizer: Any) -> None:
    with pytest.raises(
        BadInput, match=r"sampling\.chat_template_kwargs\.enable_thinking: the chat template .* no such"
    ):
        tokenize_prompts(prompts_of("a"), tokenizer, {"enable_thinking": False})


def test_prompts_keep_their_order_and_their_own_lengths(tokenizer: Any) -> None:
    contents = ["one", "a much longer one", ""]
    ids = tokenize_prompts(prompts_of(*contents), tokenizer)
    alone = [tokenize_prompts(prompts_of(content), tokenizer)[0] for content in contents]
    assert ids == alone
    assert len({len(row) for row in ids}) == 3


def test_a_prompt_of_no_token_is_named() -> None:
    silent: Any = SimpleNamespace(
        chat_template="{}", apply_chat_template=lambda chat, **options: [] if "b" in chat[0]["content"] else [1]
    )
    with pytest.raises(BadInput) as caught:
        tokenize_prompts(prompts_of("a", "b"), silent)
    assert str(caught.value).startswith("data/prompts.parquet: prompt_id 'p1' becomes no token. ")


def test_a_template_that_refuses_a_chat_is_named() -> None:
    def refuse(chat: Any, **options: Any) -> list[int]:
        raise TemplateError("system messages are not supported")

    picky: Any = SimpleNamespace(chat_template="{}", apply_chat_template=refuse)
    with pytest.raises(BadInput, match=r"refuses prompt_id 'p0' \(system messages are not supported\)"):
        tokenize_prompts(prompts_of("a"), picky)


def test_a_tokenizer_without_a_chat_template_is_named() -> None:
    with pytest.raises(BadInput, match=r"data/base: its tokenizer has no chat template"):
        tokenize_prompts(prompts_of("a"), SimpleNamespace(chat_template=None))


def test_seeds_are_hashes_of_all_that_makes_a_completion() -> None:
    requests = make_requests(["p", "q"], [[1], [2, 3]], 3, 7, 4)
    assert [request.prompt_token_ids for request in requests] == [[1], [2, 3]]
    assert requests[1].seeds == [stable_seed(7, 4, "q", index) for index in range(3)]
    seeds = {seed for request in requests for seed in request.seeds}
    for other in (make_requests(["p", "q"], [[1], [2, 3]], 3, 8, 4), make_requests(["p", "q"], [[1], [2, 3]], 3, 7, 5)):
        assert not seeds & {seed for request in other for seed in request.seeds}
    assert len(seeds) == 6
    # Neither the other prompts, nor the size of the group, nor the tokens change a seed.
    assert make_requests(["q"], [[9]], 8, 7, 4)[0].seeds[:3] == requests[1].seeds


def test_a_group_is_named_by_iteration_and_prompt() -> None:
    assert group_id(0, "00ff") == "0000/00ff"
    assert group_id(12345, "00ff") == "12345/00ff"


# Rows and counts ------------------------------------------------------------------------------------------------------

REQUESTS = [SampleRequest([1, 2], [10, 11]), SampleRequest([3], [2**63 - 1, 13])]
COMPLETIONS = [
    [SampledCompletion([5, 6, END_ID], [-0.5, -0.25, -1.0], "stop", 10), SampledCompletion([7], [-2.0], "length", 11)],
    [
        SampledCompletion([END_ID], [-0.125], "stop", 2**63 - 1),
        SampledCompletion([5, 5, 5, END_ID], [-1.0] * 4, "stop", 13),
    ],
]


def test_a_completion_is_a_row(tokenizer: Any) -> None:
    rows = completion_rows(["p", "q"], REQUESTS, COMPLETIONS, tokenizer, 3)
    check_schema(rows.schema, ROLLOUTS, "rollouts")
    check_table(rows, ROLLOUTS, "rollouts")
    check_order(rows.select("completion_id"), ROLLOUTS, "rollouts")
    text = tokenizer.decode([5, 6])
    assert rows.row(0, named=True) == {
        "iteration": 3,
        "prompt_id": "p",
        "group_id": "0003/p",
        "completion_id": "0003/p/0",
        "completion_index": 0,
        "seed": 10,
        "prompt_token_ids": [1, 2],
        "completion_token_ids": [5, 6, END_ID],
        "completion_text": text,  # without the end token
        "sampling_logprobs": [-0.5, -0.25, -1.0],
        "finish_reason": "stop",
    }
    assert not any(special in text for special in SPECIAL_TOKENS)
    assert rows["completion_id"].to_list() == ["0003/p/0", "0003/p/1", "0003/q/0", "0003/q/1"]
    assert rows["seed"].to_list() == [10, 11, 2**63 - 1, 13]
    assert rows["completion_text"].to_list()[2] == ""


def test_metrics_count_completions_and_tokens(tokenizer: Any) -> None:
    metrics = rollout_metrics(completion_rows(["p", "q"], REQUESTS, COMPLETIONS, tokenizer, 3), seconds=0.5)
    # Lengths 3, 1, 1, 4: 9 tokens, 2.25 a completion, 18 a second; log-probabilities sum to -1.75 - 2 - 0.125 - 4.
    assert metrics == {
        "n_groups": 2,
        "n_completions": 4,
        "n_prompt_tokens": 2 + 2 + 1 + 1,
        "n_completion_tokens": 9,
        "completion_tokens_mean": 2.25,
        "truncated_fraction": 0.25,
        "tokens_per_second": 18.0,
        "sampling_logprob_mean": pytest.approx(-7.875 / 9),
    }
    json.dumps(metrics, allow_nan=False)


# The stage ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads cost a model this small more than they give."""
    with threads.one_thread():
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a base model, which is the policy too, and three of four prompts selected."""
    monkeypatch.chdir(tmp_path)
    for name in ("base", "policy"):
        build_tiny_model(tmp_path / "data" / name)
    # Sorted by id, selected in another order.
    write_table(prompts_of("1+1", "What is 20+20?", "3", "4"), Path("data/prompts.parquet"), PROMPTS)
    drawn = [
        {"iteration": 0, "position": i, "prompt_id": p, "reason": "epoch 0"} for i, p in enumerate(["p3", "p0", "p1"])
    ]
    write_table(pl.DataFrame(drawn, schema=SELECTION.schema), Path("data/selection.parquet"), SELECTION)
    set_params()
    return tmp_path


def set_params(**changes: Any) -> None:
    names = {"group_size": "rollout.group_size", "batch": "sampling.max_batch_completions", "seed": "seed"}
    write_params(Path(), {"rollout.group_size": 3, **{names[name]: value for name, value in changes.items()}})


def roll_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ended:
    return run_here("rollout", rollout, monkeypatch, capsys)


@pytest.mark.usefixtures("folder")
def test_the_stage_writes_a_group_per_selected_prompt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = roll_out(monkeypatch, capsys)
    assert (ended.code, ended.err) == (0, "")
    path = Path("data/rollouts.parquet")
    rows = read_table(path, ROLLOUTS)
    assert rows["completion_id"].to_list() == [f"0000/p{p}/{i}" for p in (0, 1, 3) for i in range(3)]
    assert rows["seed"].to_list() == [stable_seed(0, 0, f"p{p}", i) for p in (0, 1, 3) for i in range(3)]
    metadata = table_metadata(path)
    assert metadata["policy_fingerprint"] == policy_fingerprint(Path("data/policy"), Path("data/base"))
    assert (metadata["engine"], metadata["temperature"]) == ("transformers", "1.0")
    assert metadata["batching"] == "max_batch_completions=128 shard_completions=128"
    metrics = json.loads(Path("data/metrics/rollout.json").read_text())
    assert (metrics["n_completions"], metrics["n_groups"]) == (9, 3)
    assert metrics["policy_fingerprint"] == metadata["policy_fingerprint"]
    assert ended.out.startswith(f"rollout: 9 completions of 3 prompts, {metrics['n_completion_tokens']} tokens, ")


@pytest.mark.usefixtures("folder")
def test_the_stage_writes_the_same_bytes_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = []
    for seed in (0, 0, 1):
        set_params(seed=seed)
        assert roll_out(monkeypatch, capsys).code == 0
        contents.append(Path("data/rollouts.parquet").read_bytes())
    assert contents[0] == contents[1] != contents[2]


@pytest.mark.usefixtures("folder")
def test_logprobs_in_the_file_are_those_of_the_policy_in_the_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert roll_out(monkeypatch, capsys).code == 0
    model = load_model(Path("data/policy"), Path("data/base"), torch.device("cpu"), torch.float32)
    assert end_token_ids(model, load_tokenizer(Path("data/base"))) == [END_ID]
    for row in read_table(Path("data/rollouts.parquet"), ROLLOUTS).to_dicts():
        prompt, completion = row["prompt_token_ids"], row["completion_token_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(completion).unsqueeze(1)).squeeze(1)
        # The stage samples in bfloat16, whose rounding of these logits is about 0.01.
        assert row["sampling_logprobs"] == pytest.approx(expected.tolist(), abs=0.05)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda: Path("data/selection.parquet").unlink(), "data/selection.parquet: there is no such file"),
        (lambda: Path("data/prompts.parquet").write_bytes(b""), "data/prompts.parquet: it can't be read as Parquet"),
        (
            lambda: write_table(prompts_of("1", "2"), Path("data/prompts.parquet"), PROMPTS),
            "data/selection.parquet: prompt_id 'p3' is not in data/prompts.parquet",
        ),
        (
            lambda: write_params(Path(), {"iteration": 1, "parent": "0" * 40}),
            "data/selection.parquet: it was made for iteration 0, and params.yaml says 1",
        ),
        (
            # 1 + len('user\n') + len('What is 20+20?') + 1 + 1 + 1 + len('assistant\n') = 33
            lambda: write_params(Path(), {"sampling.max_completion_tokens": 500}),
            "params.yaml: sampling.max_completion_tokens: a prompt of 33 tokens and 500 new ones make 533",
        ),
        (lambda: Path("data/policy/config.json").unlink(), "data/policy: it holds no config.json"),
        (lambda: write_params(Path(), {"sampling.device": "cuda"}), "params.yaml: device: it says cuda"),
    ],
)
def test_what_is_wrong_is_named_and_earlier_rollouts_stay(
    break_it: Any, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "cuda" in message and torch.cuda.is_available():
        pytest.skip("torch sees a GPU")
    path = Path("data/rollouts.parquet")
    path.write_bytes(b"earlier")
    break_it()
    ended = roll_out(monkeypatch, capsys)
    assert (ended.code, ended.record["kind"]) == (1, "bad_input")
    assert ended.record["message"].startswith(message)
    assert "Traceback" not in ended.err
    assert path.read_bytes() == b"earlier"
