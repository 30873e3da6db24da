"""The tables and their columns in words, for the README and the cards of data sets."""

from __future__ import annotations

import polars as pl

from pipeline.tables import TABLES, Column, PolarsType


def data_dictionary() -> str:
    """The tables and their columns as Markdown, for the README."""
    parts: list[str] = []
    for table in TABLES.values():
        parts.append(f"**{table.name}** (one row per {table.row}; key: {', '.join(table.key)})\n")
        parts.append("| column | type | meaning |\n| --- | --- | --- |")
        for column in table.columns:
            parts.append(f"| {column.name} | {_type_name(column)} | {column.meaning} |")
        for column in table.extra:
            prefix, _, rest = column.name.partition("<")
            parts.append(f"| {prefix}`<{rest}` | {_type_name(column)} | {column.meaning} |")
        parts.append("")
    return "\n".join(parts)


def _type_name(column: Column) -> str:
    return dtype_name(column.dtype) + ("?" if column.nullable else "")


def dtype_name(dtype: PolarsType | pl.datatypes.DataTypeClass) -> str:
    """A type as the data dictionary has it.

    >>> dtype_name(TABLES["prompts"].schema["messages"])
    'List[Struct{role, content}]'
    """
    if isinstance(dtype, pl.Enum):
        return f"Enum[{', '.join(dtype.categories)}]"
    if isinstance(dtype, pl.List):
        return f"List[{dtype_name(dtype.inner)}]"
    if isinstance(dtype, pl.Struct):
        return f"Struct{{{', '.join(f.name for f in dtype.fields)}}}"
    return dtype.__name__ if isinstance(dtype, type) else type(dtype).__name__
