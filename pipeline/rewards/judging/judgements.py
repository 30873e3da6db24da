"""What judges said, kept on disk by the key of what they were asked: an equal question is never asked twice."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl

from pipeline.rewards.judging.questions import JudgeQuestion
from pipeline.table_io import write_text
from pipeline.tables import JUDGEMENTS


class Judgements:
    """A folder of answers, a file each, and those that were used since `begin`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._used: dict[str, dict[str, str]] = {}

    def begin(self, known: pl.DataFrame | None = None) -> None:
        """Forget which were used, and add those of `known`, a table of `judgements`, to the folder."""
        self._used = {}
        for row in known.iter_rows(named=True) if known is not None else ():
            if not self._file(row["judgement_id"]).is_file():
                write_text(json.dumps(row), self._file(row["judgement_id"]))

    def find(self, question: JudgeQuestion) -> str | None:
        """The answer to an equal question, or None."""
        return self.use(question.key)

    def use(self, key: str) -> str | None:
        """The answer of that key, which counts as used; None where there is none."""
        if key not in self._used:
            try:
                self._used[key] = json.loads(self._file(key).read_text(encoding="utf-8"))
            except (FileNotFoundError, ValueError):  # a damaged file is asked anew
                return None
        return self._used[key]["answer"]

    def keep(self, question: JudgeQuestion, answer: str) -> None:
        """Keep the answer to a question."""
        request = json.dumps(question.body, sort_keys=True, ensure_ascii=False)
        row = {"judgement_id": question.key, "address": question.address, "request": request, "answer": answer}
        write_text(json.dumps(row), self._file(question.key))
        self._used[question.key] = row

    @property
    def used_keys(self) -> list[str]:
        """The keys of the answers that were used."""
        return sorted(self._used)

    def used(self) -> pl.DataFrame:
        """The answers that were used, as a table of `judgements`."""
        return pl.DataFrame([self._used[key] for key in self.used_keys], schema=JUDGEMENTS.schema)

    def _file(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


KEPT = Judgements(Path(".rollbook/judgements"))
"""Those of the repository in the current directory."""
