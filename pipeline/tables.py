"""The schema of every table, and the data dictionary made from it. `table_checks` holds rows against it."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

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

    `same_length` lists columns of lists that have as many entries as each other (one per token), and `not_empty` those
    whose lists have an entry.
    `extra` admits further columns that are nullable, any number of each: the name of each is such as `reward_<term>`.
    """

    name: str
    row: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    same_length: tuple[str, ...] = ()
    not_empty: tuple[str, ...] = ()
    extra: tuple[Column, ...] = ()
    may_be_empty: bool = True
    schema: dict[str, PolarsType] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", {column.name: column.dtype for column in self.columns})

    def type_of(self, name: str) -> PolarsType | None:
        """The type of the column `name`, one of the table's own or an extra one; None where it may have no such."""
        if name in self.schema:
            return self.schema[name]
        return next((column.dtype for column in self.extra if name.startswith(column.name.partition("<")[0])), None)

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
REWARD = _c("reward", pl.Float64, "composed of the terms; null where the completion can't be scored", True)
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
        _c("verifier", pl.String, "what decides `is_correct`: a verifier by its name, or `none`"),
        _c("metadata", pl.String, "JSON that the verifier needs", True),
    ),
    not_empty=("messages",),
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
        _c("reason", pl.String, "the rule that drew it, and the pass rate it had"),
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
        _c("seed", pl.Int64, "seed that held, its own or its shard's; its own, unused, where `seed_scope` is none"),
        PROMPT_TOKENS,
        COMPLETION_TOKENS,
        _c("completion_text", pl.String, "the tokens decoded, special tokens left out"),
        SAMPLING_LOGPROBS,
        _c("finish_reason", FinishReason, "`stop`: an end token; `length`: cut by the limit"),
    ),
    same_length=("completion_token_ids", "sampling_logprobs"),
    not_empty=("prompt_token_ids", "completion_token_ids"),
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
    extra=(
        _c("reward_<term>", pl.Float64, "one per term of `score.terms`", True),
        _c("is_correct_<verifier>", pl.Boolean, "one per verifier of `score.shadow_verifiers`: its verdict", True),
    ),
)
TERM, SHADOW = "reward_", "is_correct_"
"""How the columns of a reward's terms and of shadow verifiers begin in `rewards`."""
JUDGEMENTS = Table(
    "judgements",
    "answer of a judge that a reward rests on",
    ("judgement_id",),
    (
        _c("judgement_id", pl.String, "SHA-256 of everything that determines the answer"),
        _c("address", pl.String, "who was asked"),
        _c("request", pl.String, "JSON of what was asked: model, chat, temperature, seed"),
        _c("answer", pl.String, "the judge's text, verdict and reasoning"),
    ),
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
        _c("n_correct", pl.UInt16, "completions with a reward that are judged correct"),
        _c("n_unscorable", pl.UInt16, "completions without a reward"),
        _c("n_truncated", pl.UInt16, "completions cut by the limit"),
        _statistic("reward_mean", "mean over its scorable completions", True),
        _statistic("reward_std", "their standard deviation (ddof=1); null with fewer than two", True),
        _c("outcome", Outcome, "what the verdicts say of the group"),
        _c("kept", pl.Boolean, "whether it is trained on"),
        _c("reason", pl.String, "why it is kept or dropped"),
    ),
)
SURPLUS = "surplus"
"""How `reason` begins in `groups` where the group would teach, and enough others do."""
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
    not_empty=("prompt_token_ids", "completion_token_ids"),
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
        _statistic(
            "loss",
            "policy_loss + kl_coefficient * KL - entropy_coefficient * entropy, both put together like the tokens",
        ),
        _statistic("policy_loss", "minus the clipped objective"),
        _statistic("kl", "KL to the reference, mean per token, nats; null without a reference", True),
        _statistic("entropy", "of the policy, mean per token, nats"),
        _statistic("clip_fraction_low", "tokens whose ratio is clipped from below"),
        _statistic("clip_fraction_high", "tokens whose ratio is clipped from above"),
        _statistic("ratio_max", "largest ratio of current to old probability"),
        _statistic("sampling_kl", "KL of sampling engine to trainer, mean per token (k3), nats"),
        _statistic("grad_norm", "before clipping"),
        _statistic("learning_rate", "after warm-up and decay"),
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
        JUDGEMENTS,
        ADVANTAGES,
        GROUPS,
        TRAINING_SET,
        TOKEN_LOGPROBS,
        TRAIN_STEPS,
        EVAL,
    )
}
