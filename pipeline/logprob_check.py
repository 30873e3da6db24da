"""How far sampler and trainer are apart on the tokens of an iteration, and the tokens where it is most, in context.

Both should give a token the same probability: the same weights, temperature, tokens and, up to rounding, arithmetic.
What is measured is defined where it is asked otherwise: by the audit's questions and by the rules of the diagnosis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from pipeline.audit.answer import answer
from pipeline.audit.registry import question_named
from pipeline.audit.tables import IterationTables, Tables
from pipeline.health.evidence import Evidence
from pipeline.health.finding import Finding
from pipeline.health.mismatch_rules import logprobs_agree, weights_effective
from pipeline.params import HealthParams
from pipeline.token_text import Decode, in_context


@dataclass(frozen=True)
class LogprobCheck:
    """What was found.

    `agreement` is the row of the question `agreement`, without run and iteration. `findings` are of the rules
    `logprobs_agree` and `weights_effective`. `worst` has the rows of the question `token_mismatch`, worst first, with
    `context`, the token in its text. Of `n_without` completions the trainer has no log-probabilities.
    """

    agreement: dict[str, Any]
    findings: list[Finding]
    worst: pl.DataFrame
    n_without: int


def check_logprobs(tables: Tables, decode: Decode, limits: HealthParams, n_worst: int) -> LogprobCheck:
    """Check the iteration that `tables` are of.

    Raises:
        Unanswerable: the trainer has no log-probability of it.
        BadInput: a table is missing or damaged.
    """
    (agreement,) = answer(question_named("agreement"), tables).rows.drop("run").to_dicts()
    rollouts, recorded = tables["rollouts"], tables["token_logprobs"]
    evidence = Evidence(agreement.pop("iteration"), {}, [], {"training_set": rollouts, "token_logprobs": recorded})
    n_completions = rollouts.select(pl.len()).collect().item()
    return LogprobCheck(
        agreement,
        [rule(evidence, limits) for rule in (logprobs_agree, weights_effective)],
        _worst(tables, decode, n_worst),
        n_completions - agreement["n_completions"],
    )


def with_logprobs(tables: Tables, token_logprobs: pl.DataFrame) -> IterationTables:
    """`tables`, of one iteration, with `token_logprobs` in place of their own."""

    def scan(name: str) -> pl.LazyFrame:
        return token_logprobs.lazy() if name == "token_logprobs" else tables[name].drop("run")

    return IterationTables(scan, tables.names[0])


def _worst(tables: Tables, decode: Decode, n_worst: int) -> pl.DataFrame:
    found = answer(question_named("token_mismatch"), tables, n_worst).rows.drop("completion_text", strict=False)
    tokens = (
        tables["rollouts"]
        .join(found.lazy().select("completion_id").unique(), on="completion_id", how="semi")
        .select("completion_id", "prompt_token_ids", "completion_token_ids")
        .collect(engine="streaming")
    )
    lists = {completion_id: (prompt, completion) for completion_id, prompt, completion in tokens.iter_rows()}
    contexts = [
        in_context(*lists[completion_id], position, decode)
        for completion_id, position in found.select("completion_id", "position").iter_rows()
    ]
    return found.with_columns(context=pl.Series(contexts, dtype=pl.String))
