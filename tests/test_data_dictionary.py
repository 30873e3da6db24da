"""The tables in words."""

from __future__ import annotations

import re

from pipeline.data_dictionary import data_dictionary
from pipeline.tables import TABLES


def test_the_data_dictionary_has_every_column() -> None:
    text = data_dictionary()
    for name, table in TABLES.items():
        assert f"**{name}** (one row per {table.row}; key: {', '.join(table.key)})" in text
        for column in table.columns:
            assert re.search(rf"^\| {column.name} \| \S.*{'[?]' if column.nullable else ''} \| \S", text, re.MULTILINE)
    assert "| finish_reason | Enum[stop, length] |" in text
    assert "| messages | List[Struct{role, content}] |" in text
    assert "| sampling_logprobs | List[Float32] |" in text
    assert "| reward_`<term>` | Float64? |" in text
