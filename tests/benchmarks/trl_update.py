"""`make bench-update`: the update and the whole step beside TRL's GRPOTrainer and a plain padded loop, on the CPU.

Each side is a process of its own, and they take steps in turn. All have the same base model with float32 masters
under bfloat16 autocast, the same prompts, lengths, loss, clipping and learning rate, and take one optimizer step on
the rollouts of a step. With LoRA, Rollbook's frozen base is bfloat16, as its stage has it, and the others' float32, as
`create_model_from_path` of TRL has it. The sides are those of `tests/benchmarks/trl/worker.py`:

- `rollbook`: every group is trained on, in whole steps too, where no rewards of a group are all equal;
- `rollbook-filtered` (whole steps): a share of the groups has equal rewards, and the filter drops it;
- `rollbook-checkpointed`: the same as `rollbook` with gradient checkpointing, which TRL's defaults have;
- `trl`: GRPOTrainer with its defaults, which trains on every group whatever its rewards;
- `trl-uncheckpointed`: the same without gradient checkpointing, so faster and larger;
- `padded` (updates): rows padded to the longest, logits everywhere, log_softmax.

A whole step of Rollbook loads the policy in bfloat16 for its rollouts, as its stage does; processes and files are
left out, which `orchestration.py` measures. The first step of a side counts in no time.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from itertools import islice, product
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import stages  # noqa: F401  (sets how OpenMP waits, which every side inherits)
from tests.benchmarks.compare import need
from tests.benchmarks.trl.results import Result, make_table, summarize
from tests.benchmarks.trl.task import SHAPES, Method, Part, Task
from tests.benchmarks.trl.turns import SideProcess, take_turns
from tests.benchmarks.trl.worker import SIDES

SIDES_OF_PART: dict[Part, list[str]] = {
    Part.UPDATE: ["rollbook", "rollbook-checkpointed", "trl", "padded"],
    Part.WHOLE: ["rollbook", "rollbook-filtered", "trl"],
}


def known(names: Collection[str]) -> Callable[[list[str] | None], list[str] | None]:
    """A check that refuses what is not in `names`."""

    def check(values: list[str] | None) -> list[str] | None:
        for value in values or []:
            if value not in names:
                raise typer.BadParameter(f"{value!r} is not one of {', '.join(names)}")
        return values

    return check


SEVERAL = "may be given several times; all of them where left out"


def main(
    shape: Annotated[
        list[str] | None, typer.Option(callback=known(SHAPES), help=f"of {', '.join(SHAPES)}; 1 and 2 where left out")
    ] = None,
    method: Annotated[list[Method] | None, typer.Option(help=SEVERAL)] = None,
    part: Annotated[list[Part] | None, typer.Option(help=SEVERAL)] = None,
    side: Annotated[
        list[str] | None, typer.Option(callback=known(SIDES), help=f"of {', '.join(SIDES)}; instead of the usual ones")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="steps of each side, after one that does not count")] = 10,
    base: Annotated[Path, typer.Option(help="folder of the base model")] = Path("data/base"),
    out: Annotated[Path, typer.Option(help="where all numbers go, as JSON")] = Path(".rollbook/bench_update.json"),
    kl_coefficient: Annotated[float, typer.Option(help="with a reference, the base; not with the side padded")] = 0.0,
    limit_fraction: Annotated[float, typer.Option(help="share of completions that run to the limit")] = 0.5,
    equal_fraction: Annotated[float, typer.Option(help="share of groups that the filter drops")] = 0.5,
    rows_per_microbatch: Annotated[int, typer.Option(help="of the padded sides; 8 is TRL's default")] = 8,
) -> None:
    """Measure each shape with each method in each part, and print the ratios."""
    need([str(base / "config.json")])
    if importlib.util.find_spec("trl") is None:
        sys.exit("trl is not installed: `pip install --constraint constraints.txt --editable '.[bench]'`")
    results: list[Result] = []
    for names in product(shape or ["1", "2"], method or Method, part or Part):
        task = Task(
            str(base.resolve()), *names, steps + 1, kl_coefficient, limit_fraction, equal_fraction, rows_per_microbatch
        )
        for result in measure(task, side or usual_sides(task)):
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps([*results, result], indent=1), encoding="utf-8")
            report_round(result)
        results.append(result)
        Console(width=None if sys.stdout.isatty() else 140).print(make_table(result))
    print(f"all numbers: {out}")


def report_round(result: Result) -> None:
    """A line of progress: hours pass until the table comes."""
    last = {side: measured[-1] for side, measured in result["steps"].items() if side != "matmul"}
    steps = [f"{side} {step['seconds']:.1f} s, {step['peak_bytes'] / 1e9:.2f} GB" for side, step in last.items()]
    n_rounds = len(next(iter(result["steps"].values())))
    print(f"round {n_rounds} of {result['task']['n_steps']}: {'; '.join(steps)}", file=sys.stderr, flush=True)


def usual_sides(task: Task) -> list[str]:
    """The sides to compare; the padded loop has no reference."""
    return [name for name in SIDES_OF_PART[task.part] if name != "padded" or task.kl_coefficient == 0]


def measure(task: Task, sides: list[str]) -> Iterator[Result]:
    """The steps of `sides` so far, taken in turn, and beside an update what the machine could do in that moment.

    There is one after each round but the first, whose steps count in no time.
    """
    names = [*sides, "matmul"] if task.part is Part.UPDATE else sides
    with ExitStack() as stack:
        processes = {name: stack.enter_context(SideProcess(name, task)) for name in names}
        for steps in islice(take_turns(processes, task.n_steps), 1, None):
            yield summarize(task, steps)


if __name__ == "__main__":
    typer.run(main)
