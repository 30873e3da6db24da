"""A process that keeps its work in files, killed at a moment of which the test decides only so much."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path


def kill_among_files(process: subprocess.Popen[bytes], folder: Path, wanted: int, draw: random.Random) -> int:
    """Kill `process` soon after it has made `wanted` JSON files in `folder`; how many it had made by then."""
    while len(list(folder.glob("*.json"))) < wanted:
        assert process.poll() is None, "it ended before it was killed"
    time.sleep(draw.uniform(0, 0.02))
    process.kill()
    process.communicate()
    return len(list(folder.glob("*.json")))
