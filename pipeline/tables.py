"""The schema of every table, the rules its rows obey, and the data dictionary made from both.

Every table that a stage writes passes `check_table` first, and every table that a stage reads passes it again,
since a person may have edited the file in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import polars as pl

from pipeline.errors import BadInput

SCHEMA_VERSION = "1"

FinishReason = pl.Enum(["stop", "length"])
Split = pl.Enum(["train", "eval"])
Outcome = pl.Enum(["all_correct", "all_wrong", "mixed", "unscorable", "unverified"])
EvalPolicy = pl.Enum(["before", "after"])
Messages = pl.List(pl.Struct({"role": pl.String, "content": pl.String}))
Tokens = pl.List(pl.Int32)
LogProbs = pl.List(pl.Float32)

PolarsType = pl.DataType | type[pl.DataType]


@dataclass(frozen=True)
class Column:
    """A column: its type, whether null is allowed, and one line that says what it holds."""

    name: str
    dtype: PolarsType
    meaning: str
    nullable: bool = False


@dataclass(frozen=True)
class Table:
    """A table: one row per `row`, unique by `key`, sorted by `key`.

    `same_length` lists columns of lists that have as many entries as each other (one per token).
    `extra_prefix`, where set, admits further nullable Float64 columns whose names begin with it.
    """

    name: str
    row: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    same_length: tuple[str, ...] = ()
    extra_prefix: str | None = None
    may_be_empty: bool = True
    schema: dict[str, PolarsType] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", {column.name: column.dtype for column in self.columns})

    def empty(self) -> pl.DataFrame:
        """A frame with this table's columns and no row."""
        return pl.DataFrame(schema=self.schema)


def _c(name: str, dtype: PolarsType, meaning: str, nullable: bool = False) -> Column:
    return Column(name, dtype, meaning, nullable)


ITERATION = _c("iteration", pl.UInt32, "the iteration that made the row, from 0")
PROMPT_ID = _c("prompt_id", pl.String, "16 hexadecimal digits of the SHA-256 of the messages")
GROUP_ID = _c("group_id", pl.String, "`<iteration, four digits>/<prompt_id>`")
COMPLETION_ID = _c("completion_id", pl.String, "`<group_id>/<completion_index>`")
PROMPT_TOKENS = _c("prompt_token_ids", Tokens, "the prompt through the chat template, as the policy saw it")
COMPLETION_TOKENS = _c("completion_token_ids", Tokens, "the sampled tokens, the end token included")
SAMPLING_LOGPROBS = _c(
    "sampling_logprobs", LogProbs, "nats, one per completion token, after temperature, from the sampling engine"
)
REWARD = _c("reward", pl.Float64, "weighted sum of the terms; null where the completion can't be scored", True)
IS_CORRECT = _c("is_correct", pl.Boolean, "the verifier's verdict; null where it has none", True)


def _statistic(name: str, meaning: str, nullable: bool = False) -> Column:
    return _c(name, pl.Float64, meaning, nullable)


PROMPTS = Table(
    "prompts",
    "prompt",
    ("prompt_id",),
    (
        PROMPT_ID,
        _c("split", Split, "train prompts are rolled out, eval prompts are only evaluated on"),
        _c("source", pl.String, "where it came from: `reasoning_gym/chain_sum`, a file, a data set"),
        _c("messages", Messages, "the chat, before the template: `role` and `content` of each message"),
        _c("answer", pl.String, "the reference answer", True),
        _c("verifier", pl.String, "what decides `is_correct`: `math`, `reasoning_gym` or `none`"),
        _c("metadata", pl.String, "JSON that the verifier needs", True),
    ),
    may_be_empty=False,
)
PROMPT_STATS = Table(
    "prompt_stats",
    "prompt seen so far",
    ("prompt_id",),
    (
        PROMPT_ID,
        _c("n_groups", pl.UInt32, "groups rolled out so far"),
        _c("n_completions", pl.UInt32, "completions with a verdict so far"),
        _c("n_correct", pl.UInt32, "correct ones among them"),
        _statistic("pass_rate", "n_correct / n_completions", True),
        _statistic("recent_pass_rate", "pass rates of its groups, older ones decayed", True),
        _c("last_iteration", pl.UInt32, "when it was last rolled out", True),
    ),
)
SELECTION = Table(
    "selection",
    "prompt of this iteration",
    ("iteration", "position"),
    (
        ITERATION,
        _c("position", pl.UInt32, "its place in the draw, from 0"),
        PROMPT_ID,
        _c("reason", pl.String, "why it was drawn"),
    ),
    may_be_empty=False,
)
ROLLOUTS = Table(
    "rollouts",
    "completion",
    ("completion_id",),
    (
        ITERATION,
        PROMPT_ID,
        GROUP_ID,
        COMPLETION_ID,
        _c("completion_index", pl.UInt16, "its place in the group, from 0"),
        _c("seed", pl.Int64, "seed of its own random stream"),
        PROMPT_TOKENS,
        COMPLETION_TOKENS,
        _c("completion_text", pl.String, "the tokens decoded, special tokens left out"),
        SAMPLING_LOGPROBS,
        _c("finish_reason", FinishReason, "`stop`: an end token; `length`: cut by the limit"),
    ),
    same_length=("completion_token_ids", "sampling_logprobs"),
    may_be_empty=False,
)
REWARDS = Table(
    "rewards",
    "completion",
    ("completion_id",),
    (
        ITERATION,
        COMPLETION_ID,
        GROUP_ID,
        PROMPT_ID,
        REWARD,
        IS_CORRECT,
        _c("extracted_answer", pl.String, "what the verifier compared with the answer", True),
        _c("score_error", pl.String, "why it can't be scored, or what went wrong while scoring", True),
    ),
    extra_prefix="reward_",
)
ADVANTAGES = Table(
    "advantages",
    "completion",
    ("completion_id",),
    (
        ITERATION,
        COMPLETION_ID,
        GROUP_ID,
        PROMPT_ID,
        REWARD,
        _statistic("reward_mean", "mean over the scorable completions of the group", True),
        _statistic("reward_std", "their standard deviation (ddof=1); null with fewer than two", True),
        _statistic("advantage", "the group-relative advantage; null where reward is null", True),
    ),
)
GROUPS = Table(
    "groups",
    "group",
    ("group_id",),
    (
        ITERATION,
        GROUP_ID,
        PROMPT_ID,
        _c("group_size", pl.UInt16, "completions in the group"),
        _c("n_correct", pl.UInt16, "completions judged correct"),
        _c("n_unscorable", pl.UInt16, "completions without a reward"),
        _c("n_truncated", pl.UInt16, "completions cut by the limit"),
        _statistic("reward_mean", "mean over its scorable completions", True),
        _statistic("reward_std", "their standard deviation (ddof=1); null with fewer than two", True),
        _c("outcome", Outcome, "what the verdicts say of the group"),
        _c("kept", pl.Boolean, "whether it is trained on"),
        _c("reason", pl.String, "why it is kept or dropped"),
    ),
)
TRAINING_SET = Table(
    "training_set",
    "kept completion",
    ("completion_id",),
    (
        ITERATION,
        COMPLETION_ID,
        GROUP_ID,
        PROMPT_TOKENS,
        COMPLETION_TOKENS,
        SAMPLING_LOGPROBS,
        _statistic("advantage", "the same for every token of the completion"),
        _c("is_truncated", pl.Boolean, "cut by the limit"),
    ),
    same_length=("completion_token_ids", "sampling_logprobs"),
)
TOKEN_LOGPROBS = Table(
    "token_logprobs",
    "trained completion",
    ("completion_id",),
    (
        ITERATION,
        COMPLETION_ID,
        _c("steps", pl.List(pl.UInt32), "the optimizer steps that used it, counted over the run"),
        _c("old_logprobs", LogProbs, "nats, the trainer's own, before its first step of the iteration"),
        _c("ref_logprobs", LogProbs, "nats, the reference's; null where no reference is loaded", True),
    ),
    same_length=("old_logprobs", "ref_logprobs"),
)
TRAIN_STEPS = Table(
    "train_steps",
    "optimizer step",
    ("step",),
    (
        ITERATION,
        _c("step", pl.UInt32, "counted over the run, from 0"),
        _c("epoch", pl.UInt32, "pass over the training set, from 0"),
        _c("n_completions", pl.UInt32, "completions with an unmasked token"),
        _c("n_tokens", pl.UInt64, "unmasked completion tokens"),
        _statistic("loss", "policy_loss + kl_coefficient * KL"),
        _statistic("policy_loss", "minus the clipped objective"),
        _statistic("kl", "KL to the reference, mean per token, nats; null without a reference", True),
        _statistic("entropy", "of the policy, mean per token, nats"),
        _statistic("clip_fraction_low", "tokens whose ratio is clipped from below"),
        _statistic("clip_fraction_high", "tokens whose ratio is clipped from above"),
        _statistic("ratio_max", "largest ratio of current to old probability"),
        _statistic("sampling_kl", "KL of sampling engine to trainer, mean per token (k3), nats"),
        _statistic("grad_norm", "before clipping"),
        _statistic("learning_rate", "after warm-up"),
    ),
)
EVAL = Table(
    "eval",
    "held-out completion",
    ("policy", "prompt_id", "completion_index"),
    (
        ITERATION,
        _c("policy", EvalPolicy, "`before`: the policy that the run starts from; `after`: this iteration's"),
        PROMPT_ID,
        _c("completion_index", pl.UInt16, "its place among the completions of its prompt, from 0"),
        _c("completion_text", pl.String, "the tokens decoded, special tokens left out"),
        _c("finish_reason", FinishReason, "`stop`: an end token; `length`: cut by the limit"),
        IS_CORRECT,
        REWARD,
    ),
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        PROMPTS,
        PROMPT_STATS,
        SELECTION,
        ROLLOUTS,
        REWARDS,
        ADVANTAGES,
        GROUPS,
        TRAINING_SET,
        TOKEN_LOGPROBS,
        TRAIN_STEPS,
        EVAL,
    )
}


def check_table(frame: pl.DataFrame, table: Table, where: str, first_row: int = 0) -> None:
    """Raise `BadInput` unless `frame` obeys `table`: nulls, NaN, keys, lengths of token lists.

    `where` names the file in the message, and `first_row` is the number in it of the frame's first row. The frame
    may hold a part of the columns of `table`, as a lazy read leaves it; rules that need an absent column are
    skipped, and so are names and types: see `check_schema`.
    """
    if frame.height == 0:
        if not table.may_be_empty:
            raise BadInput(where, f"it has no rows, and {table.name} needs at least one", _RERUN[table.name])
        return
    rows = _Rows(frame, where, first_row)
    for column in table.columns:
        if column.name in frame.columns:
            _check_nulls(rows, column)
    for name, dtype in frame.schema.items():
        if dtype.is_float():
            rows.refuse(~pl.col(name).is_finite(), [name], "is not finite")
        elif isinstance(dtype, pl.List) and dtype.inner.is_float():
            rows.refuse(_any_entry(name, ~pl.element().is_finite()), [name], "has an entry that is not finite")
    _check_lengths(rows, table)
    if all(name in frame.columns for name in table.key):
        rows.refuse(pl.struct(table.key).is_duplicated(), table.key, "is the same in two rows, and it is the key")


def check_order(keys: pl.DataFrame, table: Table, where: str, first_row: int = 0) -> None:
    """Raise `BadInput` unless `keys`, the key columns of `table`, rise from row to row."""
    rows = _Rows(keys, where, first_row)
    rows.refuse(pl.struct(table.key).is_duplicated(), table.key, "is the same in two rows, and it is the key")
    is_moved = keys.to_struct() != keys.sort(table.key).to_struct()
    rows.refuse(pl.lit(is_moved), table.key, "is out of place, as rows are sorted by it")


_RERUN: dict[str, str] = {
    "prompts": "Check `prompts` in params.yaml, then run `dvc repro prompts`",
    "selection": "Check `select` in params.yaml, then run `dvc repro select`",
    "rollouts": "Run `dvc repro rollout`",
}


def check_schema(schema: pl.Schema, table: Table, where: str) -> None:
    """Raise `BadInput` unless `schema` has exactly the columns of `table`, with their types.

    >>> check_schema(SELECTION.empty().schema, SELECTION, "data/selection.parquet")
    """
    terms = [name for name in schema if table.extra_prefix is not None and name.startswith(table.extra_prefix)]
    expected = {**dict.fromkeys(terms, pl.Float64()), **table.schema}
    extra = [name for name in schema if name not in expected]
    missing = [name for name in expected if name not in schema]
    remedy = f"Run `dvc repro` again so that the stage that makes {table.name} writes it anew"
    if missing:
        raise BadInput(where, f"column {missing[0]!r} is missing; {table.name} has {list(table.schema)}", remedy)
    if extra:
        raise BadInput(where, f"column {extra[0]!r} is not a column of {table.name}: {list(table.schema)}", remedy)
    for name, dtype in expected.items():
        if schema[name] != dtype:
            raise BadInput(where, f"column {name!r} is {schema[name]}, not {dtype}", remedy)


@dataclass(frozen=True)
class _Rows:
    """Rows under check, the first of which is row `first_row` of the file `where`."""

    frame: pl.DataFrame
    where: str
    first_row: int

    def refuse(self, is_bad: pl.Expr, columns: Sequence[str], rule: str) -> None:
        """Raise `BadInput` where a row `is_bad`, naming the first such row and its value in `columns`."""
        bad = self.frame.select(is_bad.fill_null(False).arg_true()).to_series()
        if bad.len():
            row = int(bad[0])
            value = str(self.frame.select(columns).row(row))[:200]
            others = f" ({bad.len()} rows in all)" if bad.len() > 1 else ""
            raise BadInput(
                self.where,
                f"row {self.first_row + row}: {', '.join(columns)} {rule}: {value}{others}",
                "Restore the file with `dvc checkout`, or run the stage that makes it again",
            )


def _check_nulls(rows: _Rows, column: Column) -> None:
    name = column.name
    if not column.nullable:
        rows.refuse(pl.col(name).is_null(), [name], "is null")
    if isinstance(column.dtype, pl.List):
        rows.refuse(_any_entry(name, pl.element().is_null()), [name], "has an entry that is null")
        for part in column.dtype.inner.fields if isinstance(column.dtype.inner, pl.Struct) else ():
            is_null = pl.element().struct.field(part.name).is_null()
            rows.refuse(_any_entry(name, is_null), [name], f"has an entry whose {part.name} is null")


def _check_lengths(rows: _Rows, table: Table) -> None:
    columns = [name for name in table.same_length if name in rows.frame.columns]
    for first, second in pairwise(columns):
        differ = pl.col(first).list.len() != pl.col(second).list.len()
        rows.refuse(differ, [second], f"has another number of entries than {first}")


def _any_entry(column: str, is_bad: pl.Expr) -> pl.Expr:
    return pl.col(column).list.eval(is_bad).list.any()


def data_dictionary() -> str:
    """The tables and their columns as Markdown, for the README."""
    parts: list[str] = []
    for table in TABLES.values():
        parts.append(f"**{table.name}** (one row per {table.row}; key: {', '.join(table.key)})\n")
        parts.append("| column | type | meaning |\n| --- | --- | --- |")
        for column in table.columns:
            parts.append(f"| {column.name} | {_type_name(column)} | {column.meaning} |")
        if table.extra_prefix:
            parts.append(f"| {table.extra_prefix}`<term>` | Float64? | one per term of `score.terms` |")
        parts.append("")
    return "\n".join(parts)


def _type_name(column: Column) -> str:
    return _dtype_name(column.dtype) + ("?" if column.nullable else "")


def _dtype_name(dtype: PolarsType | pl.datatypes.DataTypeClass) -> str:
    if isinstance(dtype, pl.Enum):
        return f"Enum[{', '.join(dtype.categories)}]"
    if isinstance(dtype, pl.List):
        return f"List[{_dtype_name(dtype.inner)}]"
    if isinstance(dtype, pl.Struct):
        return f"Struct{{{', '.join(f.name for f in dtype.fields)}}}"
    return dtype.__name__ if isinstance(dtype, type) else type(dtype).__name__
