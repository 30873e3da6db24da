"""Ranks as processes: started on one machine, as torchrun starts them, and joined to a process group."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

from pipeline.errors import BadInput, RollbookError
from pipeline.params import TrainingParams
from pipeline.policy import resolve_device
from pipeline.training.distributed import ALONE, Ranks

TIME_LIMIT = timedelta(minutes=30)
"""How long ranks wait for one of them: longer than the first takes to write a large policy."""

SECONDS_TO_BE_ENDED = 5
"""How long a rank that is told to end may take, and how soon a rank is ended after another one failed."""


def launch(module: str, n_processes: int) -> int:
    """Run `python -m <module>` as `n_processes` ranks on this machine.

    Where one fails, the others are ended. Returns its exit code, or 0: minus the number of the signal where one ended
    it, or this process was told to end.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // n_processes)))
    log = logging.getLogger("torch.distributed.elastic")  # it tells at length what a rank has said in one line
    log.addHandler(logging.NullHandler())
    log.propagate = False
    with tempfile.TemporaryDirectory() as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=n_processes,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            shutdown_timeout=SECONDS_TO_BE_ENDED,
        )
        try:
            elastic_launch(config, sys.executable)("-m", module)
        except ChildFailedError as failed:
            return failed.get_first_failure()[1].exitcode
        except SignalException as told:
            return -told.sigval
    return 0


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """The block gets the ranks that torchrun started, of which this process is one; else this process alone.

    A rank of several GPUs takes that of its number on its machine.
    """
    if not dist.is_torchelastic_launched():
        yield ALONE
        return
    _prctl_pr_set_pdeathsig(signal.SIGKILL)  # else a rank goes on and writes when nobody waits for it any more
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=TIME_LIMIT)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    except RollbookError:
        raise
    except Exception:
        # Where another rank has failed, this may be no more than the loss of its connection: let it have its say.
        time.sleep(SECONDS_TO_BE_ENDED)
        raise
    dist.barrier()
    dist.destroy_process_group()


def leave_to_ranks(module: str, training: TrainingParams) -> NoReturn:
    """Start `python -m <module>` as the ranks of an update, and end as they did; the first one speaks for all."""
    n_gpus = torch.cuda.device_count() if resolve_device(training.device).type == "cuda" else 0
    n_processes = training.n_processes or max(1, n_gpus)
    if n_gpus and n_processes > n_gpus:
        problem = f"{n_processes} processes would share {n_gpus} GPUs"
        raise BadInput("params.yaml: training.n_processes", problem, "Lower it, or leave it out")
    code = launch(module, n_processes)
    if code == -signal.SIGINT:
        raise KeyboardInterrupt
    if code < 0:
        ended_by = signal.Signals(-code)
        print(f"update: ended by {ended_by.name}, with its {n_processes} processes", file=sys.stderr, flush=True)
        if ended_by != signal.SIGKILL:
            signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
    sys.exit(code)
