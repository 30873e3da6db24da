"""A `vllm serve` that does as its test says: it dies, stalls, lies, or serves another policy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pipeline.sampling.served_policy import ServedPolicy
from tests.threaded_server import running

Reply = tuple[int, Any]
"""Status and body: bytes, or what becomes JSON."""
Complete = Callable[[dict[str, Any]], Reply | None]
"""Body of a request for completions -> the reply; None breaks the connection off."""

END = 2


def complete(body: dict[str, Any]) -> Reply:
    """As many completions as are asked for, of three tokens: one from the seed, one from the index, the end token."""
    return 200, {"model": body["model"], "choices": [choice(body, index) for index in range(body["n"])]}


def choice(body: dict[str, Any], index: int = 0) -> dict[str, Any]:
    """A completion as vLLM gives it."""
    return {
        "index": index,
        "token_ids": [3 + body.get("seed", 0) % 50, 3 + index, END],
        "logprobs": {"token_logprobs": [-0.5, -1.0, -0.25], "tokens": ["a", "b", ""], "text_offset": [0, 1, 2]},
        "finish_reason": "stop",
        "stop_reason": END,
        "text": "ab",
        "prompt_token_ids": body["prompt"],
    }


@dataclass
class FakeServer:
    """What it serves and how it is; a test may change any of it at any time.

    `serves` holds the names of models, those of adapters with their folders. `probe_error` is added to every
    log-probability of the probe. `seen` are the paths and bodies of the requests so far.
    """

    url: str
    policy: ServedPolicy
    serves: dict[str, str | None]
    complete: Complete = complete
    is_dead: bool = False
    loads_adapters: bool = True
    takes_weights: bool = True
    weight_version: str = "default"
    max_model_len: int = 512
    version: str = "0.32.0"
    key: str | None = None
    probe_error: float = 0.0
    n_missing_probe_logprobs: int = 0
    follows_temperature: bool = True
    default_temperature: float = 1.0
    seen: list[tuple[str, Any]] = field(default_factory=list)

    def paths(self) -> list[str]:
        """Of the requests so far, without looks at its health and models."""
        return [path for path, _ in self.seen if path not in ("/health", "/v1/models", "/weight_info")]

    def asked(self) -> list[dict[str, Any]]:
        """The bodies of requests for completions."""
        return [body for path, body in self.seen if path == "/v1/completions" and "n" in body]

    def answer(self, path: str, body: Any) -> Reply | None:
        """The reply; None breaks the connection off."""
        self.seen.append((path, body))
        if self.is_dead:
            return None
        if path == "/v1/completions" and "n" in body:
            reply = self.complete(body) if body["model"] in self.serves else (404, {"error": "no such model"})
            return None if self.is_dead else reply
        return self._answers[path](self, body)

    def _models(self, _: Any) -> Reply:
        cards = [
            {"id": name, "max_model_len": self.max_model_len, "parent": None}
            if folder is None
            else {"id": name, "parent": "base", "root": folder}
            for name, folder in self.serves.items()
        ]
        return 200, {"object": "list", "data": cards}

    def _load(self, body: Any) -> Reply:
        if not self.loads_adapters:
            return 404, {"detail": "Not Found"}
        self.serves[body["lora_name"]] = body["lora_path"]
        return 200, b"Success"

    def _unload(self, body: Any) -> Reply:
        return (200, b"Success") if self.serves.pop(body["lora_name"], None) else (404, b"not found")

    def _weight_info(self, _: Any) -> Reply:
        return (200, {"weight_version": self.weight_version}) if self.takes_weights else (404, {"detail": "Not Found"})

    def _set_version(self, body: Any) -> Reply:
        self.weight_version = body["new_version"]
        return 200, {"success": True}

    def _probe(self, body: Any) -> Reply:
        temperature = body.get("temperature", self.default_temperature) if self.follows_temperature else 1.0
        scaled = [-each / temperature for each in range(5)]
        total = math.log(sum(map(math.exp, scaled)))
        top = {f"token_id:{token}": logprob - total for token, logprob in enumerate(scaled)}
        top[f"token_id:{50 + len(self.seen)}"] = -9.0  # vLLM tells of the one that was drawn too
        probe = self.policy.probe
        given: list[Any] = [None]
        for token, logprob in zip(probe.token_ids[1:], probe.logprobs, strict=True):
            given.append({str(token): {"logprob": min(0.0, logprob + self.probe_error), "rank": 1}})
        if self.n_missing_probe_logprobs:
            given = given[: -self.n_missing_probe_logprobs]
        logprobs = {"token_logprobs": [-0.5], "top_logprobs": [top]}
        found = {"index": 0, "logprobs": logprobs, "prompt_logprobs": given if "prompt_logprobs" in body else None}
        return 200, {"model": body["model"], "choices": [found]}

    _answers = {  # noqa: RUF012  # a constant
        "/health": lambda self, _: (200, b""),
        "/version": lambda self, _: (200, {"version": self.version}),
        "/v1/models": _models,
        "/v1/load_lora_adapter": _load,
        "/v1/unload_lora_adapter": _unload,
        "/weight_info": _weight_info,
        "/update_weight_version": _set_version,
        "/collective_rpc": lambda self, _: (200, {"results": [None]}),
        "/reset_prefix_cache": lambda self, _: (200, {"success": True}),
        "/v1/completions": _probe,
    }


@contextmanager
def serve(policy: ServedPolicy) -> Iterator[FakeServer]:
    """A server on a free port of this machine, of the base that the policy needs, or of another whole model."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.reply(None)

        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"null"))

        def reply(self, body: Any) -> None:
            if fake.key is not None and self.headers["Authorization"] != f"Bearer {fake.key}":
                status, value = 401, {"error": "Unauthorized"}
            else:
                answer = fake.answer(self.path, body)
                if answer is None:
                    self.close_connection = True
                    return
                status, value = answer
            content = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Those who ask may hang up."""

    with running(Server(("127.0.0.1", 0), Handler)) as address:
        fake = FakeServer(address, policy, {policy.base_name or policy.name: None})
        yield fake
