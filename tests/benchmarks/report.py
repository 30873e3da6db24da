"""The page of an iteration at three sizes: what it costs to make, its size, and what a browser makes of it.

`python -m tests.benchmarks.report` needs Chromium. Completions have about 2,000 characters.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.browser import BROWSER, Tab, opened_browser
from tests.iteration_sample import sample_frames, sample_metrics, write_iteration
from tests.stage_runs import ROOT, write_params

SIZES = (128, 10_000, 100_000)
N_PHRASES = 140
WORDS = ["the answer is", "so we add them", "carry one and", "get ten because", "first we take", "minus two times"]
OUTCOMES = ("mixed", "mixed", "all_wrong", "all_correct", "mixed", "unscorable")


def main() -> None:
    print("completions  made in  peak memory      page  loaded in  memory   search")
    for n_completions in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            print(measure(n_completions, Path(folder)), flush=True)


def measure(n_completions: int, folder: Path) -> str:
    """A line of the table."""
    words = random.Random(0)
    texts = [" ".join(words.choices(WORDS, k=N_PHRASES)) for _ in range(n_completions)]
    outcomes = [OUTCOMES[k % len(OUTCOMES)] for k in range(n_completions // 4)]
    write_iteration(folder, sample_frames(outcomes=outcomes, texts=texts), sample_metrics())
    write_params(folder, {"report.groups_per_outcome": 20})
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-m", "stages.report"], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL
    )
    made = json.loads((folder / "data/metrics/report.json").read_text(encoding="utf-8"))
    page = folder / "data/report.html"
    cost = f"{made['seconds']:5.1f} s  {made['peak_memory_mb']:8,} MB"
    line = f"{n_completions:11,}  {cost}  {page.stat().st_size / 1e6:5.1f} MB"
    if BROWSER is None:
        return f"{line}  no Chromium"
    with opened_browser(folder) as tab:
        return line + browse(tab, page.as_uri())


def browse(tab: Tab, address: str) -> str:
    """Milliseconds until the page is there, memory of the process that shows it, milliseconds of a search."""
    tab.open(address)  # once, for the browser's own start
    started = time.monotonic()
    tab.open(address)
    loaded = time.monotonic() - started
    tab.run("document.getElementById('browse').elements.search.value = 'carry one and get'")
    search = "document.getElementById('browse').elements.search.dispatchEvent(new Event('input'))"
    searched = tab.run(f"(() => {{ const start = performance.now(); {search}; return performance.now() - start; }})()")
    return f"  {1000 * loaded:6.0f} ms  {tab.memory_mb():4.0f} MB  {searched:4.0f} ms"


if __name__ == "__main__":
    main()
