"""The command `rollbook replay`: stored completions rolled out again, and compared token by token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import polars as pl
import typer
from rich.console import Console
from rich.progress import Progress

from pipeline.audit.display import open_console, print_rows
from pipeline.params import SamplingParams, load_params
from pipeline.replay.choice import Choice
from pipeline.sampling import FinishReason
from pipeline.stored_iteration import BASE, StoredIteration, find_stored
from pipeline.summary import decimal
from pipeline.token_text import Decode, in_context, read_decoder
from pipeline.versioning.repository import Repository

if TYPE_CHECKING:
    from pipeline.replay.replaying import Plan, Replay

DIFFERENT = 1
"""The exit code where completions differ that should not."""
SHOWN = 20
"""Differing completions."""


def replay_completions(
    name: Annotated[str, typer.Argument(metavar="RUN/K", help="demo/0003, a tag or a commit.")],
    completion_id: Annotated[str | None, typer.Option(help="Only this one: 0003/<prompt_id>/2.")] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Only so many, drawn from as many groups as can be")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw of --sample.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="All of it as JSON, with every completion.")] = False,
) -> None:
    """Roll out stored completions again; exit code 1 where they differ and should not."""
    if completion_id is not None and sample is not None:
        raise typer.BadParameter("choose one of --completion-id and --sample")
    # To import torch takes seconds, and `rollbook` has other commands.
    from pipeline.replay.replaying import NEEDED, plan_replay, run_replay

    stored = find_stored(Repository.find(), name)
    with stored.laid_out(NEEDED) as folder:
        plan = plan_replay(stored, sampling_of(stored), folder, Choice(completion_id, sample, seed))
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("replay", total=plan.n_completions)

            def on_progress(reasons: Sequence[FinishReason], _n_tokens: int) -> None:
                bar.advance(task, len(reasons))

            replay = run_replay(plan, on_progress)
        differing = _differing(plan, replay, read_decoder(folder / BASE / "tokenizer.json"))
    if as_json:
        typer.echo(json.dumps(_as_json(stored.iteration.name, replay, differing), indent=2, ensure_ascii=False))
    else:
        _print(stored.iteration.name, replay, differing)
    if replay.is_promised and differing.height:
        raise typer.Exit(DIFFERENT)


def sampling_of(stored: StoredIteration) -> SamplingParams:
    """As stored; but servers, with or without seeds as then, are where params.yaml says now, if it names any."""
    sampling = stored.params.sampling
    if sampling.engine != "server":
        return sampling
    here = load_params().sampling.server
    if not here.urls:
        return sampling
    server = here.model_copy(update={"per_completion_seeds": sampling.server.per_completion_seeds})
    return sampling.model_copy(update={"server": server})


def _differing(plan: Plan, replay: Replay, decode: Decode) -> pl.DataFrame:
    """The completions that are not identical, with the text around the first difference, as stored and as it is now."""
    rows = replay.completions.filter(~pl.col("is_identical"))
    lists = plan.rollouts.select("completion_id", "prompt_token_ids", "completion_token_ids")
    texts: dict[str, list[str | None]] = {"stored": [], "again": []}
    for completion_id, place, prompt, tokens in (
        rows.select("completion_id", "first_difference").join(lists, "completion_id", maintain_order="left").iter_rows()
    ):
        for side, ids in (("stored", tokens), ("again", replay.again[completion_id].token_ids)):
            texts[side].append(None if place is None else in_context(prompt, ids, place, decode))
    return rows.drop("is_identical").with_columns(pl.Series(side, texts[side], pl.String) for side in texts)


def _as_json(name: str, replay: Replay, differing: pl.DataFrame) -> dict[str, Any]:
    return {
        "name": name,
        "n_completions": replay.completions.height,
        "n_identical": replay.n_identical,
        "n_rolled_out_along": replay.n_along,
        "n_shared_tokens": replay.n_shared_tokens,
        "logprob_max_difference": replay.logprob_max_difference,
        "logprob_mean_difference": replay.logprob_mean_difference,
        "is_promised": replay.is_promised,
        "is_repeatable": replay.is_repeatable,
        "changes": replay.changes,
        "completions": replay.completions.to_dicts(),
        "differing": differing.to_dicts(),
    }


def _print(name: str, replay: Replay, differing: pl.DataFrame) -> None:
    console = open_console()
    if not replay.is_repeatable:
        console.print("The engine does not promise to repeat itself: equal tokens are not to be expected.")
    for change in replay.changes:
        console.print(f"Not as it was, so that equality is not promised: {change}", markup=False)
    n, n_along = replay.completions.height, replay.n_along
    along = f"; {n_along:,} more of their shards were rolled out along" if n_along else ""
    console.print(f"{name}: {replay.n_identical:,} of {n:,} completions are identical, token for token{along}")
    if replay.n_shared_tokens:
        largest, mean = decimal(replay.logprob_max_difference), decimal(replay.logprob_mean_difference)
        tokens = f"{replay.n_shared_tokens:,} tokens" + (" before the first that differs" if differing.height else "")
        console.print(f"log-probabilities of {tokens}: they differ by {mean} nats on average, by {largest} at most")
    if differing.height:
        print_rows(differing.head(SHOWN), console)
        if differing.height > SHOWN:
            console.print(f"{SHOWN} of {differing.height:,}; --json gives all.")
