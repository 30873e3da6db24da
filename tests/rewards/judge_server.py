"""A judge that does as its test says, on an address of OpenAI's kind."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.threaded_server import running

Answer = Callable[[dict[str, Any], int], tuple[int, Any, dict[str, str]]]
"""Body of the request and how many came before it -> status, JSON of the reply, further headers."""


@dataclass
class JudgeServer:
    """Its address, and the bodies of the requests that it got."""

    address: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    most_at_once: int = 0


def says(text: str) -> tuple[int, Any, dict[str, str]]:
    """A reply that holds `text`."""
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}, {}


@contextmanager
def serve_judge(answer: Answer) -> Iterator[JudgeServer]:
    """A server on a free port of this machine."""
    lock = threading.Lock()
    at_once = 0

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal at_once
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                at_once += 1
                judge.most_at_once = max(judge.most_at_once, at_once)
                number = len(judge.requests)
                judge.requests.append({**body, "path": self.path, "key": self.headers["Authorization"]})
            status, reply, headers = answer(body, number)
            with lock:
                at_once -= 1
            content = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as address:
        judge = JudgeServer(f"{address}/v1")
        yield judge
