"""The engine `server` against servers that die, stall, lie, answer garbage, or have another policy."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import BadInput, TransientError
from pipeline.fingerprint import fingerprint_folders
from pipeline.params import LoraParams, SamplingParams, ServerParams
from pipeline.policy import create_adapter, load_tokenizer, policy_fingerprint
from pipeline.sampling import FinishReason, SampledCompletion, SampleRequest, server_pool
from pipeline.sampling.served_policy import SERVED, ServedPolicy, prepare_policy
from pipeline.sampling.server_sampler import ServerSampler, describe
from pipeline.sampling.shards import Sampled, sample_in_shards
from tests.sampling import fake_server
from tests.sampling.fake_server import END, FakeServer, Reply, choice, complete
from tests.tiny_model import build_tiny_model

REQUESTS = [SampleRequest([5, 6, 7 + i], [100 * i + j for j in range(4)]) for i in range(6)]
POSITIONS = 3 + 8


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base and two policies, an adapter and a whole model."""
    root = tmp_path_factory.mktemp("project")
    build_tiny_model(root / "data/base")
    build_tiny_model(root / "data/whole", seed=1)
    create_adapter(root / "data/base", LoraParams(rank=4, alpha=8.0), 0, root / "data/policy")
    return root


@pytest.fixture(autouse=True)
def _in_the_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses take little time."""
    monkeypatch.chdir(project)
    monkeypatch.setattr(server_pool, "FIRST_PAUSE_SECONDS", 0.005)
    monkeypatch.setenv("NO_PROXY", "*")


def params(urls: Sequence[str], max_batch_completions: int = 4, **changes: Any) -> SamplingParams:
    server = {"urls": list(urls), "recovery_time_limit_seconds": 30.0, **changes}
    return SamplingParams(
        engine="server",
        temperature=0.7,
        max_completion_tokens=8,
        max_batch_completions=max_batch_completions,
        server=server,  # type: ignore[arg-type]
    )


def prepared(policy: str = "policy", **changes: Any) -> ServedPolicy:
    base = Path("data/base")
    given = params(["http://127.0.0.1:1"], **changes).server
    return prepare_policy(Path("data") / policy, base, load_tokenizer(base), given, POSITIONS)


@pytest.fixture
def serve() -> Iterator[Callable[[], FakeServer]]:
    """Makes servers of the base, which have room for the prompts and completions of this file."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(fake_server.serve(prepared()))


Serve = Callable[[], FakeServer]


def open_sampler(given: SamplingParams, policy: str = "policy") -> ServerSampler:
    base = Path("data/base")
    return ServerSampler(Path("data") / policy, base, load_tokenizer(base), given, longest_prompt=3)


def sample(given: SamplingParams, policy: str = "policy") -> list[list[SampledCompletion]]:
    with closing(open_sampler(given, policy)) as sampler:
        return sampler.sample(REQUESTS, lambda *_: None)


EXPECTED = [[[3 + seed % 50, 3, END] for seed in request.seeds] for request in REQUESTS]


def token_ids(groups: list[list[SampledCompletion]]) -> list[list[list[int]]]:
    return [[completion.token_ids for completion in group] for group in groups]


# What is asked --------------------------------------------------------------------------------------------------------


def test_each_completion_is_asked_for_with_its_seed_and_comes_in_its_place(serve: Serve) -> None:
    server = serve()
    groups = sample(params([server.url]))
    assert token_ids(groups) == EXPECTED
    assert [[each.seed for each in group] for group in groups] == [request.seeds for request in REQUESTS]
    assert groups[0][0] == SampledCompletion([3, 3, END], [-0.5, -1.0, -0.25], "stop", 0)
    assert sorted(body["seed"] for body in server.asked()) == sorted(seed for each in REQUESTS for seed in each.seeds)
    body = next(body for body in server.asked() if body["seed"] == 203)
    assert body["prompt"] == [5, 6, 9]
    assert {key: body[key] for key in ("n", "temperature", "top_p", "top_k", "max_tokens", "logprobs")} == {
        **{"n": 1, "temperature": 0.7, "top_p": 1.0, "top_k": 0, "max_tokens": 8, "logprobs": 0},
    }
    assert body["stop_token_ids"] == [END]


def test_without_seeds_a_group_is_asked_for_at_once(serve: Serve) -> None:
    server = serve()
    given = params([server.url], per_completion_seeds=False)
    groups = sample(given)
    assert token_ids(groups) == [[[3, 3 + index, END] for index in range(4)]] * 6
    assert [(body["n"], "seed" in body) for body in server.asked()] == [(4, False)] * 6
    assert describe(given).seed_scope == "none"
    assert describe(params([server.url])).seed_scope == "completion"
    assert [[each.seed for each in group] for group in groups] == [request.seeds for request in REQUESTS]


def test_nothing_asked_is_nothing_sampled(serve: Serve) -> None:
    with closing(open_sampler(params([serve().url]))) as sampler:
        assert sampler.sample([], lambda *_: None) == []
        assert sampler.sample([SampleRequest([3], [])], lambda *_: None) == [[]]


def test_progress_adds_up(serve: Serve) -> None:
    ended: list[FinishReason] = []
    n_tokens: list[int] = []

    def on_progress(reasons: Sequence[FinishReason], n: int) -> None:
        ended.extend(reasons)
        n_tokens.append(n)

    with closing(open_sampler(params([serve().url]))) as sampler:
        sampler.sample(REQUESTS, on_progress)
    assert Counter(ended) == {"stop": 24}
    assert sum(n_tokens) == 24 * 3


def test_work_is_spread_evenly_and_no_server_gets_more_than_its_share(serve: Serve) -> None:
    servers = [serve(), serve(), serve()]
    lock, running, most = threading.Lock(), Counter[str](), Counter[str]()

    def slow(url: str) -> Callable[[dict[str, Any]], Reply]:
        def answer(body: dict[str, Any]) -> Reply:
            with lock:
                running[url] += 1
                most[url] = max(most[url], running[url])
            time.sleep(0.01)
            with lock:
                running[url] -= 1
            return complete(body)

        return answer

    for server in servers:
        server.complete = slow(server.url)
    sample(params([server.url for server in servers], max_batch_completions=3))
    assert sum(len(server.asked()) for server in servers) == 24
    assert min(len(server.asked()) for server in servers) >= 6  # 8 each, were all of a speed
    assert max(most.values()) <= 3


# The policy -----------------------------------------------------------------------------------------------------------


def test_a_server_loads_the_adapter_by_its_fingerprint_in_place_of_an_older_one(serve: Serve, project: Path) -> None:
    server = serve()
    server.serves |= {"rollbook-0123456789abcdef": "/old", "somebody-elses": "/theirs"}
    sample(params([server.url]))
    fingerprint = policy_fingerprint(Path("data/policy"), Path("data/base"))
    folder = project / SERVED / fingerprint / "policy"
    assert server.serves == {
        f"rollbook-{fingerprint_folders(Path('data/base'))}": None,
        f"rollbook-{fingerprint}": str(folder),
        "somebody-elses": "/theirs",
    }
    assert fingerprint_folders(folder) == fingerprint_folders(Path("data/policy"))
    n_loads = server.paths().count("/v1/load_lora_adapter")
    sample(params([server.url]))
    assert server.paths().count("/v1/load_lora_adapter") == n_loads == 1


def test_a_server_elsewhere_gets_the_path_that_it_sees(serve: Serve) -> None:
    server = serve()
    sample(params([server.url], project_path="/mnt/run"))
    (path,) = (folder for folder in server.serves.values() if folder)
    assert path == f"/mnt/run/{SERVED}/{policy_fingerprint(Path('data/policy'), Path('data/base'))}/policy"


def test_a_whole_model_by_its_absolute_path_too_is_where_a_server_elsewhere_sees_it() -> None:
    base, server = Path("data/base"), ServerParams(project_path="/mnt/run")
    policy = prepare_policy(Path("data/whole").absolute(), base, load_tokenizer(base), server, POSITIONS)
    assert policy.folder == "/mnt/run/data/whole"


def test_a_copy_that_was_tampered_with_is_made_anew(serve: Serve) -> None:
    copy = Path(prepared().folder)
    (copy / "adapter_model.safetensors").write_bytes(b"other")
    prepared()
    assert fingerprint_folders(copy) == fingerprint_folders(Path("data/policy"))


def test_a_whole_model_is_loaded_into_a_running_server_and_its_version_set() -> None:
    policy = prepared("whole")
    with fake_server.serve(policy) as server:
        groups = sample(params([server.url]), "whole")
        assert token_ids(groups) == EXPECTED
        reload = ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": policy.folder}})
        # No version while the weights are neither the old ones nor the new.
        assert [each for each in server.seen if each[0] in ("/update_weight_version", "/collective_rpc")] == [
            ("/update_weight_version", {"new_version": "unknown"}),
            reload,
            ("/update_weight_version", {"new_version": policy.fingerprint}),
        ]
        assert server.paths().count("/reset_prefix_cache") == 1
        sample(params([server.url]), "whole")
        assert server.seen.count(reload) == 1


def test_weights_that_are_exchanged_while_completions_are_drawn_are_noticed() -> None:
    with fake_server.serve(prepared("whole")) as server:

        def exchange(body: dict[str, Any]) -> Reply:
            server.weight_version = "another"
            return complete(body)

        server.complete = exchange
        with pytest.raises(BadInput, match=r"its weights became those of 'another' while it sampled"):
            sample(params([server.url]), "whole")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "another base": ({"serves": {"rollbook-0123456789abcdef": None}}, r"it serves rollbook-0123456789abcdef, and not"),
    "no base": ({"serves": {}}, r"it serves nothing, and not rollbook-"),
    "no room": ({"max_model_len": 10}, r"it has room for 10 tokens, and prompt and completion may be 11"),
    "no adapters": ({"loads_adapters": False}, r"it can't load the adapter .*/policy: it answers 404"),
    "another policy behind the name": (
        {"probe_error": -0.2},
        r"is another policy: log-probabilities of a fixed text differ by 0\.200 nats per token \(at most 0\.15\)",
    ),
    "fewer log-probabilities than tokens": (
        {"n_missing_probe_logprobs": 1},
        r"it gives 8 log-probabilities for the 9 tokens of a fixed text",
    ),
    "raw log-probabilities": ({"follows_temperature": False}, r"without `--logprobs-mode processed_logprobs`"),
    "a default of the model": ({"default_temperature": 0.6}, r"without `--generation-config vllm`"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_server_of_another_policy_or_kind_is_refused(name: str, serve: Serve) -> None:
    changes, message = WRONG[name]
    right, wrong = serve(), serve()
    for key, value in changes.items():
        setattr(wrong, key, value)
    with pytest.raises(BadInput, match=message) as caught:
        sample(params([right.url, wrong.url]))
    assert not isinstance(caught.value, TransientError)
    assert str(caught.value).startswith(wrong.url)
    assert "rollbook serve" in str(caught.value)
    assert not right.asked()


def test_a_whole_model_needs_a_server_that_takes_weights() -> None:
    with fake_server.serve(prepared("whole")) as server:
        server.takes_weights = False
        with pytest.raises(BadInput, match="it was started without VLLM_SERVER_DEV_MODE=1"):
            sample(params([server.url]), "whole")


@pytest.mark.parametrize("content", [b'{"token_ids": [1', b"[]", b'{"tokens": []}', b"\xff"])
def test_a_damaged_probe_is_computed_again(content: bytes) -> None:
    served = prepared()
    file = SERVED / served.fingerprint / "probe.json"
    whole = file.read_bytes()
    file.write_bytes(content)
    assert prepared().probe == served.probe
    assert file.read_bytes() == whole


def test_the_probe_is_computed_once_for_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepared().probe
    monkeypatch.setattr("pipeline.sampling.served_policy.compute_logprobs", lambda *_: pytest.fail("computed anew"))
    assert prepared().probe == first
    assert len(first.token_ids) == POSITIONS - 1  # so that a token can be drawn
    assert len(first.logprobs) == POSITIONS - 2


def test_a_key_is_sent_and_a_missing_one_named(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    server.key = "secret"
    with pytest.raises(BadInput, match="it answers 401"):
        sample(params([server.url]))
    given = params([server.url], api_key_variable="ROLLBOOK_TEST_KEY")
    with pytest.raises(BadInput, match="environment variable ROLLBOOK_TEST_KEY: it is not set"):
        sample(given)
    monkeypatch.setenv("ROLLBOOK_TEST_KEY", "secret")
    assert token_ids(sample(given)) == EXPECTED


# What goes wrong ------------------------------------------------------------------------------------------------------


def answered(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Reply]:
    """A reply whose completion is changed."""

    def answer(body: dict[str, Any]) -> Reply:
        given = choice(body)
        change(given)
        return 200, {"model": body["model"], "choices": [given]}

    return answer


def complete_late(body: dict[str, Any], seconds: float) -> Reply:
    time.sleep(seconds)
    return complete(body)


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Reply | None], str, bool]] = {
    "dies": (lambda _: None, r"there is no connection \(RemoteProtocolError", True),
    "breaks": (lambda _: (500, b"EngineDeadError"), r"it answers 500 to /v1/completions: 'EngineDeadError'", True),
    "is busy": (lambda _: (429, b"slow down"), r"it answers 429 to /v1/completions: 'slow down'", True),
    "refuses": (lambda _: (400, b"no such option"), r"it answers 400 to /v1/completions: 'no such option'", False),
    "answers garbage": (
        lambda _: (200, b"<html>\xff"),
        r"its answer is wrong: Invalid JSON.*begins with '<html>",
        False,
    ),
    "answers something else": (lambda _: (200, {"ok": True}), r"its answer is wrong: model: Field required", False),
    "answers too few log-probabilities": (
        answered(lambda given: given["logprobs"]["token_logprobs"].pop()),
        r"its answer is wrong: completion 0 has 2 log-probabilities for 3 tokens",
        False,
    ),
    "answers of another model": (
        lambda body: (200, {"model": "gpt", "choices": [choice(body)]}),
        r"its answer is wrong: it is from the model 'gpt', and 'rollbook-",
        False,
    ),
    "answers too slowly": (
        lambda body: complete_late(body, 0.4),
        r"it gave no answer to /v1/completions within 0\.2 seconds",
        True,
    ),
}


def time_limit(fault: str) -> float:
    """Of a request, in seconds: short where a server is to miss it, else enough for a busy machine."""
    return 0.2 if fault == "answers too slowly" else 60.0


@pytest.mark.parametrize("name", FAULTS)
def test_what_one_server_fails_at_another_does(name: str, serve: Serve) -> None:
    bad, good = serve(), serve()
    bad.complete = FAULTS[name][0]
    groups = sample(params([bad.url, good.url], request_time_limit_seconds=time_limit(name)))
    assert token_ids(groups) == EXPECTED
    assert bad.asked()


@pytest.mark.parametrize("name", FAULTS)
def test_what_all_servers_fail_at_is_an_error_that_names_the_last(name: str, serve: Serve) -> None:
    fail, message, is_transient = FAULTS[name]
    servers = [serve(), serve()]
    for server in servers:
        server.complete = fail
    given = params([server.url for server in servers], n_tries=2, request_time_limit_seconds=time_limit(name))
    with pytest.raises(BadInput, match=message) as caught:
        sample(given)
    assert isinstance(caught.value, TransientError) is is_transient
    assert str(caught.value).startswith(tuple(server.url for server in servers))


def test_a_server_that_dies_midway_loses_nothing_and_is_used_again_when_it_is_back(serve: Serve) -> None:
    dying, steady = serve(), serve()
    n_before: list[int] = []

    def die(body: dict[str, Any]) -> Reply | None:
        if len(dying.asked()) < 3:
            return complete(body)
        dying.is_dead = True
        return None

    def outlive(body: dict[str, Any]) -> Reply:
        if len(steady.asked()) == 6:  # the other is back as a new process, which has no adapter
            n_before.append(len(dying.asked()))
            dying.serves = {name: folder for name, folder in dying.serves.items() if folder is None}
            dying.complete, dying.is_dead = complete, False
        for _ in range(500 if n_before else 0):
            if len(dying.asked()) > n_before[0]:
                break
            time.sleep(0.01)
        return complete(body)

    dying.complete, steady.complete = die, outlive
    assert token_ids(sample(params([dying.url, steady.url]))) == EXPECTED
    assert len(dying.asked()) > n_before[0] >= 3
    assert dying.paths().count("/v1/load_lora_adapter") == 2


def shards(given: SamplingParams) -> Sampled:
    return sample_in_shards(REQUESTS, 8, lambda: open_sampler(given), Path("shards"), ["policy"], lambda *_: None)


def test_with_all_servers_down_finished_shards_are_kept_and_a_rerun_goes_on(serve: Serve) -> None:
    servers = [serve(), serve()]

    def die_in_the_third_shard(body: dict[str, Any]) -> Reply | None:
        if body["prompt"] in ([5, 6, 11], [5, 6, 12]):
            time.sleep(0.1)
            for server in servers:
                server.is_dead = True
        return complete(body)

    for server in servers:
        server.complete = die_in_the_third_shard
    given = params([server.url for server in servers], recovery_time_limit_seconds=0.3)
    with pytest.raises(TransientError) as caught:
        shards(given)
    assert str(caught.value).startswith("params.yaml: sampling.server.urls: no server is left: ")
    assert all(f"{server.url}: there is no connection" in str(caught.value) for server in servers)
    assert caught.value.exit_code == 75
    for server in servers:
        server.is_dead, server.complete = False, complete
        server.seen.clear()
    again = shards(given)
    assert again.n_kept == 16
    assert token_ids(again.completions) == EXPECTED
    assert sum(len(server.asked()) for server in servers) == 8


def test_servers_that_are_down_from_the_start_are_waited_for_a_while() -> None:
    gone = params(["http://127.0.0.1:1"], recovery_time_limit_seconds=0.1)
    with pytest.raises(TransientError, match=r"no server is left: http://127\.0\.0\.1:1: there is no connection"):
        sample(gone)
    with pytest.raises(TransientError, match=r"no server answers: http://127\.0\.0\.1:1: there is no connection"):
        describe(gone)


def test_what_answers_and_is_no_server_of_vllm_is_refused(serve: Serve) -> None:
    locked, other = serve(), serve()
    locked.key, other.version = "secret", None  # type: ignore[assignment]
    for server, problem in [(locked, "it answers 401 to /version"), (other, "it answers what vLLM doesn't: version")]:
        with pytest.raises(BadInput, match=f"^{server.url}: {problem}") as caught:
            describe(params([serve().url, server.url]))
        assert caught.value.exit_code == 1


def test_one_server_that_is_up_is_enough(serve: Serve) -> None:
    given = params(["http://127.0.0.1:1", serve().url])
    assert token_ids(sample(given)) == EXPECTED
    assert describe(given).version == "vllm 0.32.0"


def test_servers_of_several_versions_are_refused(serve: Serve) -> None:
    servers = [serve(), serve()]
    servers[1].version = "0.33.0"
    with pytest.raises(BadInput, match=r"several versions of vLLM: .* runs 0\.32\.0, .* runs 0\.33\.0"):
        describe(params([server.url for server in servers]))


def test_closing_ends_what_is_under_way(serve: Serve) -> None:
    server = serve()
    held = threading.Event()
    server.complete = lambda body: (held.wait(20), complete(body))[1]
    sampler = open_sampler(params([server.url]))
    failed: list[BaseException] = []

    def try_to_sample() -> None:
        try:
            sampler.sample(REQUESTS, lambda *_: None)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=try_to_sample)
    thread.start()
    while not server.asked():
        time.sleep(0.01)
    sampler.close()
    thread.join(5)
    held.set()
    assert not thread.is_alive()
    assert len(failed) == 1
