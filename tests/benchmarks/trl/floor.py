"""The side that only measures the machine: its matmul peak at that moment, and what an update has to do there."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from pipeline.training.flops import count_weights, matmul_peak, update_flops
from tests.benchmarks.trl.task import LORA_RANK, Method, Task
from tests.benchmarks.trl.turns import Turns
from tests.benchmarks.trl.workload import Workload


def run(side: str, task: Task, turns: Turns) -> None:
    """Each step reports `flops_per_second` and `update_flops`.

    A prompt is run once per group, and nothing is predicted from the last token of a completion.
    """
    workload = Workload(task)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(task.base))
    counts = count_weights(model, LORA_RANK if task.method is Method.LORA else 0)
    for step in range(task.n_steps):
        turns.begin()
        n_prompt = sum(map(len, workload.prompt_token_ids(step)))
        lengths = workload.lengths(step)
        flops = update_flops(counts, n_prompt + sum(lengths) - len(lengths), sum(lengths))
        peak = matmul_peak(torch.device("cpu"))
        turns.end(flops_per_second=peak, update_flops=flops, n_threads=torch.get_num_threads())
