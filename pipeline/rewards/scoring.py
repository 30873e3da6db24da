"""Completions -> verdicts and rewards. N rows in, N rows out, in the order they came.

Rows are scored batch by batch, so that memory holds one batch of texts and tokens however many there are. Groups stay
whole; a term that looks at the whole iteration makes one batch of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from pipeline.errors import BadInput
from pipeline.params import PARAMS_FILE, ScoreParams
from pipeline.rewards.completion import Completion, Verdict
from pipeline.rewards.composition import column_of, compose_rewards
from pipeline.rewards.registry import Term, load_terms
from pipeline.rewards.term_values import TermValue, apply_term
from pipeline.rewards.verification import NO_VERIFIER, make_verifiers, verify, verify_in_shadow
from pipeline.rewards.verifier import Prompt, Verifier
from pipeline.rewards.workers import WorkersOnDemand
from pipeline.tables import SHADOW

ROLLOUT_COLUMNS = [
    "completion_id",
    "group_id",
    "prompt_id",
    "completion_text",
    "completion_token_ids",
    "finish_reason",
]
PROMPT_COLUMNS = ["prompt_id", "messages", "answer", "verifier", "metadata", "source"]

BATCH_COMPLETIONS = 4096
"""A batch ends with the first group that reaches this."""

_PROMPTS_FILE = "data/prompts.parquet"
_ROLLOUTS_FILE = "data/rollouts.parquet"

OnProgress = Callable[[int, int], None]
"""Gets, again and again, how many more completions have their verdict, and how many more have a score_error."""


def no_progress(_n_completions: int, _n_errors: int) -> None:
    """An `OnProgress` that tells nobody."""


@dataclass(frozen=True)
class Scorer:
    """All that scoring completions of known prompts takes, checked: see `make_scorer`."""

    prompts: Mapping[str, Prompt]
    verifiers: Mapping[str, Verifier]
    terms: Sequence[Term]
    params: ScoreParams

    @property
    def needs_whole_iteration(self) -> bool:
        """Whether a term looks at all completions together."""
        return any(term.scope == "batch" for term in self.terms)

    @property
    def code_isolation(self) -> str | None:
        """What stands between this machine and code that a model wrote; None where none is run."""
        names = {prompt.verifier for prompt in self.prompts.values()} | set(self.params.shadow_verifiers)
        return self.params.code.isolation if "code" in names else None

    @property
    def asks_judges(self) -> bool:
        """Whether a term asks a language model, whose answers are kept."""
        return any(term.module.endswith(".terms.judge") for term in self.terms)

    def start_workers(self) -> WorkersOnDemand:
        """The worker processes of a block, none until there is something for them to do."""
        return WorkersOnDemand(self.params.n_workers, [term.module for term in self.terms if term.runs_in_worker])


def make_scorer(prompt_ids: pl.Series, prompts: pl.DataFrame | pl.LazyFrame, params: ScoreParams) -> Scorer:
    """What scores completions, of which `prompt_ids` has one entry each.

    `prompts` has `PROMPT_COLUMNS` and one row per prompt, those of `prompt_ids` among them.

    Raises:
        BadInput: a prompt is missing or names an unknown verifier, a term can't be used as params.yaml says, or a term
            needs a verdict where the prompts have no verifier.
    """
    terms = load_terms(params.terms)
    verifiers = make_verifiers(params)
    used = prompts.lazy().select(PROMPT_COLUMNS).join(prompt_ids.to_frame().lazy(), on="prompt_id", how="semi")
    known = {row[0]: Prompt(row[0], tuple(row[1]), *row[2:]) for row in used.collect().iter_rows()}
    for row, prompt_id in enumerate(prompt_ids):
        if prompt_id not in known:
            problem = f"prompt_id {prompt_id!r} is not in {_PROMPTS_FILE}"
            raise BadInput(f"{_ROLLOUTS_FILE}: row {row}", problem, "Run `dvc repro rollout`, so that the two fit")
    _check_verifiers(known.values(), verifiers, terms)
    return Scorer(known, verifiers, terms, params)


def score_completions(
    rollouts: pl.DataFrame, prompts: pl.DataFrame, params: ScoreParams, on_progress: OnProgress = no_progress
) -> pl.DataFrame:
    """Verdict, terms and reward of each row of `rollouts`, in their order, which keeps groups together.

    Args:
        rollouts: at least `ROLLOUT_COLUMNS`.
        prompts: at least `PROMPT_COLUMNS`, one row per prompt.
        params: which verifier settings and terms, and how the reward is composed of them.
        on_progress: see `OnProgress`.

    Returns:
        completion_id, reward, is_correct, `is_correct_<verifier>` of each verifier that looks on, extracted_answer,
        `reward_<term>` of each term, score_error. Where `reward` is null, `score_error` says why.

    Raises:
        BadInput: see `make_scorer`.
    """
    scorer = make_scorer(rollouts["prompt_id"], prompts, params)
    batches = [rollouts] if scorer.needs_whole_iteration else whole_groups([rollouts], BATCH_COMPLETIONS)
    with scorer.start_workers() as workers:
        scored = [score_batch(batch, scorer, workers, on_progress) for batch in batches]
        return pl.concat(scored) if scored else score_batch(rollouts, scorer, workers, on_progress)


def whole_groups(batches: Iterable[pl.DataFrame], n_rows: int) -> Iterator[pl.DataFrame]:
    """The rows of `batches` in frames of `n_rows` or as many more as their last group has.

    The cut depends on the rows alone, and not on how they were cut before.
    """
    held = pl.DataFrame()
    for batch in batches:
        held = pl.concat([held, batch]) if held.height else batch
        while (end := _end_of_group(held, n_rows)) is not None:
            yield held.head(end)
            held = held.slice(end)
    if held.height:
        yield held


def score_batch(
    rollouts: pl.DataFrame, scorer: Scorer, workers: WorkersOnDemand, on_progress: OnProgress
) -> pl.DataFrame:
    """As `score_completions`, of one batch."""
    prompts = [scorer.prompts[prompt_id] for prompt_id in rollouts["prompt_id"]]
    texts = [answer_part(text, scorer.params.answer_after) for text in rollouts["completion_text"]]
    verdicts = verify(texts, prompts, scorer.verifiers, workers, lambda n: on_progress(n, 0))
    shadows: dict[str, list[Verdict]] = {
        name: verify_in_shadow(name, texts, prompts, verdicts, scorer.verifiers, workers)
        for name in scorer.params.shadow_verifiers
    }
    completions = _completions(rollouts, prompts, verdicts)
    values = [apply_term(term, completions, workers.start() if term.runs_in_worker else None) for term in scorer.terms]
    scores = _frame(rollouts["completion_id"], verdicts, shadows, scorer, values)
    on_progress(0, scores["score_error"].count())
    return scores


def answer_part(text: str, answer_after: str | None) -> str:
    """What a verifier sees of a completion: what follows the last `answer_after`, nothing where it never comes.

    >>> answer_part("4, or 5?</think>It is 4.", "</think>"), answer_part("4, or 5?", "</think>"), answer_part("4", None)
    ('It is 4.', '', '4')
    """
    if answer_after is None:
        return text
    _, mark, answer = text.rpartition(answer_after)
    return answer if mark else ""


def _end_of_group(rows: pl.DataFrame, n_rows: int) -> int | None:
    """The first end of a group at or after `n_rows`, as far as what follows shows it."""
    if rows.height <= n_rows:
        return None
    group = rows["group_id"][n_rows - 1]
    others = (rows["group_id"].slice(n_rows) != group).arg_true()
    return n_rows + int(others[0]) if others.len() else None


def _check_verifiers(prompts: Iterable[Prompt], verifiers: Mapping[str, Verifier], terms: Sequence[Term]) -> None:
    needy = next((term for term in terms if term.needs_verdict or term.settings.gated), None)
    for prompt in prompts:
        if prompt.verifier not in verifiers and prompt.verifier != NO_VERIFIER:
            problem = f"there is no verifier {prompt.verifier!r}"
            remedy = f"Set prompts.verifier to one of {', '.join(verifiers)} or {NO_VERIFIER}"
            raise BadInput(f"{_PROMPTS_FILE}: prompt {prompt.prompt_id}", problem, remedy)
        if prompt.verifier == NO_VERIFIER and needy:
            problem = f"it needs a verdict, and prompt {prompt.prompt_id} of {_PROMPTS_FILE} has the verifier none"
            remedy = "Remove the term, or give the prompts a verifier with prompts.verifier"
            raise BadInput(f"{PARAMS_FILE}: score.terms.{needy.name}", problem, remedy)


def _completions(rollouts: pl.DataFrame, prompts: Sequence[Prompt], verdicts: Sequence[Verdict]) -> list[Completion]:
    rows = rollouts.select("completion_id", "group_id", "completion_text", "finish_reason").iter_rows()
    tokens = _token_arrays(rollouts["completion_token_ids"])
    return [
        Completion(
            completion_id=completion_id,
            group_id=group_id,
            prompt_id=prompt.prompt_id,
            source=prompt.source,
            messages=prompt.messages,
            answer=prompt.answer,
            metadata=prompt.metadata,
            completion_text=text,
            completion_token_ids=token_ids,
            finish_reason=finish_reason,
            is_correct=verdict.is_correct,
            partial_score=verdict.partial_score,
            extracted_answer=verdict.extracted_answer,
        )
        for (completion_id, group_id, text, finish_reason), token_ids, prompt, verdict in zip(
            rows, tokens, prompts, verdicts, strict=True
        )
    ]


def _token_arrays(tokens: pl.Series) -> Iterator[array[int]]:
    """Each list of Int32 as an array, whose entries take 4 bytes where those of a list take 36."""
    flat = tokens.to_arrow().flatten()
    # Not flat.to_numpy(), which imports pandas where it is installed.
    ids = memoryview(flat.buffers()[1] or b"").cast("i")
    start = flat.offset
    for length in tokens.list.len():
        yield array("i", ids[start : start + length].tobytes())
        start += length


def _frame(
    completion_ids: pl.Series,
    verdicts: Sequence[Verdict],
    shadows: Mapping[str, Sequence[Verdict]],
    scorer: Scorer,
    values: Sequence[Sequence[TermValue]],
) -> pl.DataFrame:
    """One row per completion; `values` has one entry per term, each with one value per completion."""
    columns = {
        "is_correct": pl.Series([each.is_correct for each in verdicts], dtype=pl.Boolean),
        **{
            f"{SHADOW}{name}": pl.Series([each.is_correct for each in seen], dtype=pl.Boolean)
            for name, seen in shadows.items()
        },
        "extracted_answer": pl.Series([each.extracted_answer for each in verdicts], dtype=pl.String),
        **{
            column_of(term.name): pl.Series([value for value, _ in column], dtype=pl.Float64)
            for term, column in zip(scorer.terms, values, strict=True)
        },
    }
    composed = compose_rewards(scorer.params.terms, scorer.params.clip)
    rewards = pl.DataFrame(columns).select(reward=composed.reward, error=composed.error)
    errors = [
        [each.error for each in verdicts],
        *(_shadow_errors(name, seen, verdicts) for name, seen in shadows.items()),
        *([error for _, error in column] for column in values),
        rewards["error"].to_list(),
    ]
    joined = ["; ".join(filter(None, of_row)) for of_row in zip(*errors, strict=True)]
    reasons = [each.encode("utf-8", "replace").decode("utf-8") or None for each in joined]  # halves of surrogate pairs
    return pl.DataFrame(
        {
            "completion_id": completion_ids,
            "reward": rewards["reward"],
            **columns,
            "score_error": pl.Series(reasons, dtype=pl.String),
        }
    )


def _shadow_errors(name: str, seen: Sequence[Verdict], verdicts: Sequence[Verdict]) -> list[str | None]:
    """What went wrong where the verifier `name` is not the prompt's own, which has said it already."""
    pairs = zip(seen, verdicts, strict=True)
    return [f"shadow {name}: {each.error}" if each.error and each is not own else None for each, own in pairs]
