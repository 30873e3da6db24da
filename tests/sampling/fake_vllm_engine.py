"""An engine that `EngineProcess` can start in the place of vLLM's; the first word of its stop string says how it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from pipeline.sampling import OnProgress, SampledCompletion, SampleRequest
from pipeline.sampling.vllm_process import EngineSettings, serve


class FakeEngine:
    """Says the seed of each completion."""

    def __init__(self, settings: EngineSettings) -> None:
        self.manner, _, self.text = settings.stop[0].partition(" ")
        if self.manner == "breaks":
            print("RuntimeError: operator torchvision::nms does not exist", file=sys.stderr, flush=True)
            os._exit(1)
        if self.manner == "raises":
            raise ValueError(self.text)
        if self.manner == "logs":
            print(
                "(Worker pid=1) ERROR 01-01 [x.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried", file=sys.stderr
            )
            raise RuntimeError(self.text)

    def sample(
        self, requests: Sequence[SampleRequest], shard_seed: int | None, on_progress: OnProgress
    ) -> list[list[SampledCompletion]]:
        if self.manner == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.manner == "hangs":  # with a process of its own, as vLLM has workers
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            Path(self.text).write_text(f"{os.getpid()} {child.pid}", encoding="utf-8")
            time.sleep(600)
        on_progress(["stop"], 3)
        seeds = [[shard_seed if shard_seed is not None else seed for seed in each.seeds] for each in requests]
        return [[SampledCompletion([seed], [-0.5], "stop", seed) for seed in group] for group in seeds]


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), FakeEngine)
