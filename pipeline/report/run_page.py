"""The page of a run: verdicts and curves over its iterations, and groups of some of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.health.evidence import asked_of, sql_command
from pipeline.history_rows import HEADLINE, HistoryRow
from pipeline.report.against import Against
from pipeline.report.choice import Tables, choose_groups
from pipeline.report.embedding import embed_groups
from pipeline.report.page import draw_curves
from pipeline.report.template import Asked, make_browser, render
from pipeline.versioning.runs import Iteration

MAX_ITERATIONS_BROWSED = 12
"""Groups come from so many iterations of a run, the first and the last among them."""

MAX_CELLS = 120
"""How many iterations the table of verdicts has a cell for."""

MAX_ROWS = 40
"""How many iterations are listed with their numbers."""

COLUMNS = {**HEADLINE, "tokens": "completion_tokens_mean"}
"""Heading -> column of the history."""


@dataclass(frozen=True)
class RunInput:
    """What the page is made of.

    `iterations` are commits, or the one that lies in `data/`, whose commit is empty. `history` and `health` have an
    entry per iteration of them, in their order; the latter is what `data/health.json` holds, None where there is none.
    `tables` has the rows of `browsed` alone.
    """

    name: str
    iterations: list[Iteration]
    history: list[HistoryRow]
    health: list[dict[str, Any] | None]
    browsed: list[Iteration]
    tables: Tables
    groups_per_outcome: int
    against_name: str = ""
    against: Against | None = None


@dataclass(frozen=True)
class RuleRow:
    """A rule over the iterations: `cells` has the level in each, and `last` the finding where it last was broken."""

    rule: str
    cells: list[tuple[str, str]]
    n_broken: int
    last: dict[str, Any]
    last_iteration: Iteration

    @property
    def query(self) -> str:
        """The command that lists the rows behind `last`; empty where the commit is too old to have one."""
        rows = self.last.get("rows")
        return _asked(rows["query"], self.last_iteration) if rows else ""


def render_run(given: RunInput) -> str:
    """The page as HTML, complete in itself."""
    rows = rule_rows(given.iterations, given.health)
    values = {
        "given": given,
        "rules": rows,
        "level": (given.health[-1] or {}).get("level", "ok"),
        "verdict": _verdict(given, rows),
        "n_cells": min(len(given.iterations), MAX_CELLS),
        "curves": draw_curves(given.history),
        "columns": COLUMNS,
        "rows": list(zip(given.iterations, given.history, given.health, strict=True))[: -MAX_ROWS - 1 : -1],
    }
    tables, first = given.tables, dict[str, list[str]]()
    if given.against:
        tables = {**tables, "against": given.against.table}
        first = {"with the most flips": given.against.groups_by_flips}
    choice = choose_groups(tables, given.groups_per_outcome, first)
    groups = embed_groups(tables, choice.group_ids)
    last = given.browsed[-1]
    rest = _asked(sql_command(f"select * from rollouts where iteration = {last.number}"), last)
    note = given.against.note if given.against else ""
    choice = dataclasses.replace(choice, note=f"{choice.note}{browsed_note(given)}")
    show = f"rollbook show --run {given.name.partition('/')[0]}" if last.commit else "rollbook show"
    browser = make_browser(choice, groups, rest, show, given.against_name, note)
    return render("run.html.j2", browser, values, Asked(given.name, _audit_options(given)))


def spread(iterations: Sequence[Iteration], n: int = MAX_ITERATIONS_BROWSED) -> list[Iteration]:
    """At most `n` of `iterations`, evenly spread, with the first and the last.

    >>> [one.number for one in spread([Iteration("demo", number, "") for number in range(10)], 4)]
    [0, 3, 6, 9]
    """
    if len(iterations) <= n:
        return list(iterations)
    return [iterations[round(place * (len(iterations) - 1) / (n - 1))] for place in range(n)]


def _asked(command: str, iteration: Iteration) -> str:
    """`command` as it asks `iteration`; what is not committed lies in `data/`, which is asked without a name."""
    return asked_of(command, iteration.run, iteration.number) if iteration.commit else command


def _audit_options(given: RunInput) -> str:
    """What has `rollbook audit` ask the iterations of the page."""
    if not given.iterations[-1].commit:
        return ""
    run, _, span = given.name.partition("/")
    if ".." in span:
        return f" --run {run} --iterations {given.iterations[0].number}..{given.iterations[-1].number}"
    return f" --run {given.name}"


def browsed_note(given: RunInput) -> str:
    """Of which iterations the page has groups, and the command for another; empty where it is all."""
    shown = {iteration.number for iteration in given.browsed}
    other = next((iteration for iteration in given.iterations if iteration.number not in shown), None)
    if other is None:
        return ""
    numbers = ", ".join(map(str, sorted(shown)))
    page = f"rollbook report {given.name.partition('/')[0]}/{other.number:04d}"
    return f", of {len(shown)} of {len(given.iterations):,} iterations: {numbers}; another one: {page}"


def rule_rows(iterations: list[Iteration], health: list[dict[str, Any] | None]) -> list[RuleRow]:
    """The rules that were broken or watched in any iteration, those that warn and were broken most often first."""
    broken: dict[str, list[tuple[Iteration, dict[str, Any]]]] = {}
    for iteration, one in zip(iterations, health, strict=True):
        for finding in (one or {}).get("findings", []):
            if finding["level"] != "ok" and finding["action"] != "ignore":
                broken.setdefault(finding["rule"], []).append((iteration, finding))
    rows = [
        RuleRow(rule, _cells(rule, iterations, health), len(found), last, iteration)
        for rule, found in broken.items()
        for iteration, last in found[-1:]
    ]
    return sorted(rows, key=lambda row: (row.last["level"] != "warn", -row.n_broken))


def _cells(rule: str, iterations: list[Iteration], health: list[dict[str, Any] | None]) -> list[tuple[str, str]]:
    """Level and title of each of the last iterations."""
    cells = []
    for iteration, one in list(zip(iterations, health, strict=True))[-MAX_CELLS:]:
        findings = {finding["rule"]: finding for finding in (one or {}).get("findings", [])}
        finding = findings.get(rule)
        cells.append((finding["level"], f"{iteration.name}: {finding['message']}") if finding else ("none", ""))
    return cells


def _verdict(given: RunInput, rows: list[RuleRow]) -> str:
    n, n_warned = len(given.iterations), sum(row.last["level"] == "warn" for row in rows)
    span = "1 iteration" if n == 1 else f"{n:,} iterations"
    warned = {0: "no rule has warned", 1: "1 rule has warned"}.get(n_warned, f"{n_warned} rules have warned")
    n_watched = len(rows) - n_warned
    return f"{span}: {warned}" + (f", {n_watched} to watch" if n_watched else "")
