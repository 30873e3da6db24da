"""Free questions: SQL over the tables, and a regular expression over the completions."""

from __future__ import annotations

import re
from collections.abc import Iterable

import polars as pl

from pipeline.audit.filters import SQL_ERRORS, checked
from pipeline.audit.question import COMPLETION, PROMPT, Question, prompt_text
from pipeline.audit.tables import Tables
from pipeline.errors import BadInput, first_line
from pipeline.tables import TABLES

CONTEXT_CHARACTERS = 20
"""How much of a completion stands on each side of what was found in it."""

_KEYS = {"rewards": ("run", "completion_id"), "advantages": ("run", "completion_id"), "groups": ("run", "group_id")}


def grep(pattern: str, where: pl.Expr | None = None) -> Question:
    """The question which completions match the regular expression `pattern`.

    `where` may name any column of rollouts, rewards, advantages, groups and prompts; those that it names are shown.

    Raises:
        BadInput: it is no regular expression.
    """
    around = rf"(?s:.{{0,{CONTEXT_CHARACTERS}}})"
    in_context = f"({around}(?:{pattern}){around})"
    try:
        pl.select(contained=pl.lit("").str.contains(pattern), extracted=pl.lit("").str.extract(in_context))
    except SQL_ERRORS as error:
        remedy = "They are those of Rust's regex: neither look-around nor back-references. Escape signs with \\"
        reasons = [line.removeprefix("error: ") for line in str(error).splitlines() if line.startswith("error: ")]
        reason = reasons[0] if reasons else first_line(error)
        raise BadInput(f"grep {pattern!r}", f"it is no regular expression ({reason})", remedy) from error
    named = [] if where is None else list(dict.fromkeys(where.meta.root_names()))

    def find(tables: Tables) -> pl.LazyFrame:
        text = pl.col("completion_text")
        rows = tables["rollouts"].filter(text.str.contains(pattern))
        shown = [name for name in named if name not in (*COMPLETION, "completion_text")]
        rows = join_columns(rows, tables, [*shown, "reward", "is_correct"])
        if where is not None:
            rows = checked(rows, where)
        found = text.str.extract(in_context)
        return rows.select(
            *COMPLETION,
            *dict.fromkeys([*shown, "reward", "is_correct"]),
            n_matches=text.str.count_matches(pattern),
            found=found,
        )

    return Question("grep", f"Which completions match {pattern}?", find, ("run", "completion_id"))


def join_columns(rows: pl.LazyFrame, tables: Tables, names: Iterable[str]) -> pl.LazyFrame:
    """`rows`, of rollouts, with the columns `names` from where they are, each table joined only where it is needed.

    Raises:
        BadInput: no table of completions, groups or prompts has such a column.
    """
    wanted = [name for name in dict.fromkeys(names) if name not in rows.collect_schema()]
    known = set(rows.collect_schema())
    for table, keys in _KEYS.items():
        if not wanted:
            return rows
        columns = [name for name in tables[table].collect_schema() if name not in known]
        known |= set(columns)
        here = [name for name in wanted if name in columns]
        if here:
            rows = rows.join(tables[table].select(*keys, *here), on=list(keys), how="left")
            wanted = [name for name in wanted if name not in here]
    prompts = tables["prompts"].with_columns(prompt=prompt_text())
    here = [name for name in wanted if name in prompts.collect_schema()]
    unknown = [name for name in wanted if name not in here]
    if unknown:
        known |= set(prompts.collect_schema())
        raise BadInput(f"column {unknown[0]}", "no completion has it", f"There are {', '.join(sorted(known))}")
    return rows.join(prompts.select(*PROMPT, *here), on=list(PROMPT), how="left") if here else rows


def run_sql(query: str, tables: Tables) -> pl.DataFrame:
    """What the SQL `query` gives over all tables, each with the columns `run` and `iteration` in front.

    Raises:
        BadInput: it can't be read, or names what there is not.
    """
    if match := re.match(r"\s*(create|delete|drop|truncate|insert|update|alter)\b", query, re.IGNORECASE):
        problem = f"{match[1].lower()} is no question, and iterations are not to be changed"
        raise BadInput("sql", problem, "Begin with select or with")
    # Only tables whose names occur are opened: that of a thousand iterations takes a moment.
    named = [name for name in TABLES if re.search(rf"\b{name}\b", query)]
    try:
        with pl.SQLContext({name: tables[name] for name in named}) as context:
            return context.execute(query, eager=False).collect(engine="streaming")
    except SQL_ERRORS as error:
        remedy = f"The tables are {', '.join(TABLES)}; their columns are in the data dictionary of the README"
        raise BadInput("sql", first_line(error), remedy) from error
