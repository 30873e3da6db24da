"""The card of a data set: README.md with the header that the Hugging Face hub and `datasets` read."""

from __future__ import annotations

import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined

from pipeline.data_dictionary import dtype_name
from pipeline.exports.provenance import Provenance
from pipeline.tables import SHADOW, TABLES, TERM

MEANINGS = {column.name: column.meaning for table in reversed(TABLES.values()) for column in table.columns} | {
    "run": "the run that the iteration was read from",
    "commit": "the commit of the iteration",
    "prompt": "the chat before the completion: `role` and `content` of each message",
    "n_tokens": "completion tokens",
}


def make_card(provenance: Provenance, schema: pl.Schema, name: str, data_file: str) -> str:
    """The card as Markdown: how to load it, what the columns mean, and where the rows come from."""
    environment = Environment(
        loader=PackageLoader("pipeline.exports", "."),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    columns = {column: (dtype_name(dtype), _meaning(column)) for column, dtype in schema.items()}
    return environment.get_template("card.md.j2").render(
        provenance=provenance, columns=columns, name=name, data_file=data_file, size=_size_category(provenance.n_rows)
    )


def _meaning(column: str) -> str:
    if column in MEANINGS:
        return MEANINGS[column]
    if column.startswith(TERM):
        return "a term of the reward"
    return "what a shadow verifier says" if column.startswith(SHADOW) else "see the data dictionary of Rollbook"


def _size_category(n_rows: int) -> str:
    """The hub's word for how many rows there are.

    >>> _size_category(128), _size_category(100_000)
    ('n<1K', '100K<n<1M')
    """
    bounds = [("n<1K", 10**3), ("1K<n<10K", 10**4), ("10K<n<100K", 10**5), ("100K<n<1M", 10**6), ("1M<n<10M", 10**7)]
    return next((word for word, bound in bounds if n_rows < bound), "n>10M")
