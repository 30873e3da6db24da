"""The command `rollbook logprob-check`: sampling log-probabilities against the trainer's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from pipeline.audit.display import open_console, print_rows
from pipeline.audit.question import Unanswerable
from pipeline.audit.run_tables import RunTables
from pipeline.audit.tables import DATA, HERE, Tables, damage_named, tables_here
from pipeline.audit.training import QUANTILES, RATIO_BOUNDS
from pipeline.errors import BadInput
from pipeline.history import RunIteration
from pipeline.logprob_check import LogprobCheck, check_logprobs, with_logprobs
from pipeline.params import Params, load_params
from pipeline.stored_iteration import BASE, POLICY, StoredIteration, find_stored
from pipeline.summary import decimal, percent
from pipeline.token_text import read_decoder
from pipeline.versioning.artifacts import cached_file, missing_objects
from pipeline.versioning.repository import Repository

TRAINER_STATE = DATA / "trainer_state"
SHOWN = ("completion_id", "position", "token_id", "sampling_logprob", "old_logprob", "disagreement", "context")


@dataclass(frozen=True)
class _Source:
    """An iteration in `data/`, or a stored one: its name, params and tables, and where its tokenizer is, if it is."""

    name: str
    params: Params
    tables: Tables
    tokenizer: Path
    stored: StoredIteration | None = None

    @contextmanager
    def laid_out(self) -> Iterator[tuple[Path, bool]]:
        """The folder that has `data/` with policy, base and trainer state; whether the last one is there."""
        if self.stored is None:
            yield Path(), TRAINER_STATE.is_dir()
            return
        commit = self.stored.iteration.commit
        lacking = missing_objects(self.stored.repository, [commit], [str(TRAINER_STATE)])
        paths = [POLICY, BASE, *([] if lacking else [TRAINER_STATE])]
        with self.stored.laid_out(paths) as folder:
            yield folder, not lacking


def check_logprob_agreement(
    name: Annotated[str, typer.Argument(metavar="RUN/K", help="demo/0003, a tag or a commit; `.` is data/.")] = HERE,
    recompute: Annotated[
        bool, typer.Option(help="Run the trainer's model on all completions, those not trained on too.")
    ] = False,
    worst: Annotated[int, typer.Option(min=0, help="How many of the worst tokens to show.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="All of it as JSON.")] = False,
) -> None:
    """Compare the sampler's log-probabilities with the trainer's, token by token."""
    source = _source_here() if name == HERE else _stored_source(name)
    with damage_named():
        tables = _recomputed(source) if recompute else source.tables
        try:
            found = check_logprobs(tables, read_decoder(source.tokenizer), source.params.report.health, worst)
        except Unanswerable as error:
            remedy = "Ask about one that kept a group, or give --recompute"
            raise BadInput(source.name, "nothing was trained on in this iteration", remedy) from error
    if as_json:
        typer.echo(json.dumps(_as_json(source.name, found), indent=2, ensure_ascii=False))
        return
    _print(found, source, open_console())


def _source_here() -> _Source:
    return _Source("data", load_params(), tables_here(), BASE / "tokenizer.json")


def _stored_source(name: str) -> _Source:
    repository = Repository.find()
    stored = find_stored(repository, name)
    iteration = stored.iteration
    tables = RunTables(repository, [RunIteration(iteration.run, iteration)])
    tokenizer = cached_file(repository, iteration.commit, str(BASE), "tokenizer.json")
    return _Source(iteration.name, stored.params, tables, tokenizer or Path("tokenizer.json"), stored)


def _recomputed(source: _Source) -> Tables:
    # To import torch takes seconds, and only this needs it.
    from pipeline.training.recomputing import recompute_logprobs

    rollouts = source.tables["rollouts"].drop("run").collect()
    sampling, training = source.params.sampling, source.params.training
    with source.laid_out() as (folder, has_state):
        if not has_state:
            typer.echo(f"{source.name}: its trainer state is gone: the policy's bfloat16 weights stand in", err=True)
        state = folder / TRAINER_STATE if has_state else None
        arguments = (folder / POLICY, folder / BASE, state, training, sampling)
        return with_logprobs(source.tables, recompute_logprobs(rollouts, *arguments, lambda *_: None))


def _as_json(name: str, found: LogprobCheck) -> dict[str, Any]:
    return {
        "name": name,
        **found.agreement,
        "n_without": found.n_without,
        "findings": [asdict(finding) for finding in found.findings],
        "worst": found.worst.select(SHOWN).to_dicts(),
    }


def _print(found: LogprobCheck, source: _Source, console: Console) -> None:
    agreement = found.agreement
    console.print(
        f"{source.name}: {decimal(agreement['n_tokens'])} tokens of {decimal(agreement['n_completions'])} completions"
    )
    if found.n_without:
        console.print(
            f"{decimal(found.n_without)} more were not trained on: --recompute runs the trainer's model on all"
        )
    sizes = ", ".join(f"{name} {decimal(agreement[f'disagreement_{name}'])}" for name in ("mean", *QUANTILES, "max"))
    console.print(f"|old - sampling| in nats: {sizes}")
    low, high = RATIO_BOUNDS
    console.print(Text(f"Ratio outside [{low}, {high}]: {percent(agreement['outside_fraction'])} of the tokens"))
    for finding in found.findings:
        console.print(f"{finding.level}: {finding.message}", style=None if finding.is_ok else "yellow")
    if found.worst.height:
        if not source.tokenizer.is_file():
            console.print(f"There is no tokenizer.json here (`rollbook fetch {source.name}`): tokens are shown by id")
        print_rows(found.worst.select(SHOWN), console)
