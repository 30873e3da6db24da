"""What was measured of a task, its ratios, and both as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from rich.table import Table

from tests.benchmarks.trl.task import Task
from tests.benchmarks.trl.turns import Measured

Result = dict[str, Any]
"""A task, the steps of its sides, and a summary per side: ratios first, seconds as information."""


def summarize(task: Task, steps: dict[str, list[Measured]]) -> Result:
    """The result of `task` from the steps of its sides, of which the first does not count in times."""
    sides = {side: measured for side, measured in steps.items() if side != "matmul"}
    summary = {side: _summarize_side(side, sides, steps.get("matmul")) for side in sides}
    return {"task": asdict(task), "sizes": asdict(task.sizes), "summary": summary, "steps": steps}


def _summarize_side(side: str, sides: dict[str, list[Measured]], machine: list[Measured] | None) -> dict[str, Any]:
    own = sides[side]
    faster = {other: _ratio(sides[other], own) for other in sides if other != side}
    lighter = {other: _peak(own) / _peak(sides[other]) for other in sides if other != side}
    resident = [step["resident_bytes"] for step in own]
    after = min(9, len(resident) - 1)  # the tenth step, or the last
    return {
        "times_faster_than": faster,
        "peak_memory_over": lighter,
        "share_of_floor": _share_of_floor(own, machine) if machine else None,
        "resident_growth": resident[-1] / resident[after],
        "seconds_median": median(_seconds(own)),
        "phase_seconds_median": _phases(own[1:]),
        "peak_bytes": _peak(own),
        "resident_bytes_tenth": resident[after],
        "resident_bytes_last": resident[-1],
        "grad_norm_first": own[0].get("grad_norm"),
        "completion_tokens_mean": own[0].get("completion_tokens_mean"),
    }


def _ratio(slower: Sequence[Measured], faster: Sequence[Measured]) -> float:
    """The median over the rounds but the first: what hits a round hits both of its steps."""
    rounds = zip(_seconds(slower), _seconds(faster), strict=True)
    return median(theirs / own for theirs, own in rounds)


def _share_of_floor(own: Sequence[Measured], machine: Sequence[Measured]) -> float:
    """Seconds that the update's FLOPs would take at the matmul peak of the same round, over those it took."""
    floors: list[float] = [step["update_flops"] / step["flops_per_second"] for step in machine[1:]]
    return median(floor / seconds for floor, seconds in zip(floors, _seconds(own), strict=True))


def _phases(steps: Sequence[Measured]) -> list[float] | None:
    if "phase_seconds" not in steps[0]:
        return None
    return [median(seconds) for seconds in zip(*(step["phase_seconds"] for step in steps), strict=True)]


def _seconds(steps: Sequence[Measured]) -> list[float]:
    return [float(step["seconds"]) for step in steps[1:]]


def _peak(steps: Sequence[Measured]) -> int:
    return max(int(step["peak_bytes"]) for step in steps)


HEADINGS = (
    "times faster\nthan trl",
    "times faster\nthan padded",
    "peak memory,\nof trl's",
    "share of\nthe floor",
    "resident, last\nover 10th",
    "s/step",
    "peak, GB",
    "first gradient's\nnorm",
)


def make_table(result: Result) -> Table:
    """A line per side."""
    task, sizes = result["task"], result["sizes"]
    title = f"{task['part']}, {task['method']}, shape {task['shape']}: {sizes['n_prompts']} x {sizes['group_size']}, "
    title += f"prompts of {sizes['prompt_tokens']} tokens, up to {sizes['max_completion_tokens']} new, "
    title += f"{task['n_steps'] - 1} steps"
    table = Table("side", title=title, title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for side, summary in result["summary"].items():
        numbers = (
            summary["times_faster_than"].get("trl"),
            summary["times_faster_than"].get("padded"),
            summary["peak_memory_over"].get("trl"),
            summary["share_of_floor"],
            summary["resident_growth"],
            summary["seconds_median"],
            summary["peak_bytes"] / 1e9,
            summary["grad_norm_first"],
        )
        table.add_row(side, *("" if number is None else f"{number:.3g}" for number in numbers))
    return table
