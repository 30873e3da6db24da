"""Chromium without a window, driven through its DevTools protocol."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from websockets.sync.client import connect
from websockets.sync.connection import Connection

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync", "--window-size=1280,900"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0"),
)
SECONDS_TO_START = 60
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH: apt-get install chromium")


class Tab:
    """A tab of the browser; what its page logs as errors is in `errors`."""

    def __init__(self, connection: Connection, process: psutil.Process) -> None:
        self._connection = connection
        self._process = process
        self._n_sent = 0
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command."""
        self._n_sent += 1
        self._connection.send(json.dumps({"id": self._n_sent, "method": method, "params": params}))
        while True:
            message = self._receive()
            if message.get("id") == self._n_sent:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    def open(self, address: str) -> None:
        """Load `address` anew, also where only the fragment changes, and wait until it is there."""
        self._navigate("about:blank")
        self.errors.clear()
        self._navigate(address)
        self.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")

    def memory_mb(self) -> float:
        """Resident memory of the largest process that shows pages, this tab's."""
        processes = self._process.children(recursive=True)
        renderers = [one for one in processes if "--type=renderer" in one.cmdline()]
        return max(one.memory_info().rss for one in renderers) / 1e6

    def _navigate(self, address: str) -> None:
        self.send("Page.navigate", url=address)
        while self.run("document.readyState === 'complete' ? location.href : ''") != address:
            time.sleep(0.01)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, a promise awaited."""
        done = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._connection.recv(timeout=60))
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(message["params"]["exceptionDetails"])[:500])
        if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.errors.append(message["params"]["entry"]["text"])
        return message


@contextmanager
def opened_browser(folder: Path) -> Iterator[Tab]:
    """A tab of a browser of its own, with its profile in `folder`."""
    assert BROWSER is not None
    profile = folder / "profile"
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen([BROWSER, *FLAGS, f"--user-data-dir={profile}"], stdout=log, stderr=log)
    try:
        port = _port(profile / "DevToolsActivePort", process)
        pages = httpx.get(f"http://127.0.0.1:{port}/json/list", trust_env=False).json()
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        with connect(address, max_size=None, proxy=None) as connection:
            yield Tab(connection, psutil.Process(process.pid))
    finally:
        process.terminate()
        process.wait(30)


def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    """The port that the browser listens on, once it does."""
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline and process.poll() is None:
        if file.is_file() and (lines := file.read_text(encoding="utf-8").splitlines()):
            return int(lines[0])
        time.sleep(0.05)
    raise AssertionError(f"the browser did not start: {file}")
