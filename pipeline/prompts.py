"""Raw prompts -> the prompts table: chats, without duplicates, in two splits that share no content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from pipeline.errors import BadInput
from pipeline.params import PARAMS_FILE, PromptsParams
from pipeline.prompt_sources.raw import Message, RawPrompt
from pipeline.rewards.code.hidden_tests import read_tests
from pipeline.seeds import stable_hash
from pipeline.tables import PROMPTS


@dataclass(frozen=True)
class PromptSet:
    """The prompts table, and what became of the rows of the source: `n_unused` distinct prompts are in no split."""

    table: pl.DataFrame
    n_rows: int
    n_duplicates: int
    n_unused: int


def build_prompts(rows: Sequence[RawPrompt], params: PromptsParams) -> PromptSet:
    """The prompts table out of all `rows` of a source.

    Rows whose chats differ in blanks alone are duplicates, and the first is kept. The distinct prompts are put into
    an order that their ids and `params.seed` determine: the first `eval_size` are held out, the next `train_size`
    are trained on, so that the held-out ones stay the same when `train_size` grows.

    Raises:
        BadInput: too few distinct prompts, or a prompt with two answers where the verifier compares answers.
    """
    distinct = _distinct_prompts(rows, params)
    n_duplicates = len(rows) - len(distinct)
    n_needed = params.train_size + params.eval_size
    if len(distinct) < n_needed:
        raise _too_few(params, len(distinct), len(rows))
    ordered = sorted(distinct, key=lambda prompt_id: stable_hash(params.seed, prompt_id))
    records = [
        {
            "prompt_id": prompt_id,
            "split": "eval" if position < params.eval_size else "train",
            "source": distinct[prompt_id][1].source,
            "messages": distinct[prompt_id][0],
            "answer": distinct[prompt_id][1].answer,
            "verifier": distinct[prompt_id][1].verifier or params.verifier_name,
            "metadata": distinct[prompt_id][1].metadata,
        }
        for position, prompt_id in enumerate(ordered[:n_needed])
    ]
    table = pl.DataFrame(records, schema=PROMPTS.schema).sort("prompt_id")
    return PromptSet(table, len(rows), n_duplicates, len(distinct) - n_needed)


def chat_of(prompt: str | list[Message], system: str | None, template: str) -> list[Message]:
    """The messages that the policy gets: `template` around the user's last words, `system` before a chat without one.

    Braces in the prompt are left alone, and so is a system message that a chat brings along.

    >>> chat_of("2 + {3} = ?", None, "{prompt} Be brief.")
    [{'role': 'user', 'content': '2 + {3} = ? Be brief.'}]
    """
    chat = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(each) for each in prompt]
    chat[-1]["content"] = template.replace("{prompt}", chat[-1]["content"])
    if system is not None and all(each["role"] != "system" for each in chat):
        chat.insert(0, {"role": "system", "content": system})
    return chat


def prompt_id_of(messages: list[Message]) -> str:
    """16 hexadecimal digits of the SHA-256 of the messages."""
    return stable_hash(messages)[:16]


def without_idle_blanks(text: str) -> str:
    r"""`text` with single blanks inside lines and none around them, and without empty lines.

    Line breaks stay, since a grid of 2 by 3 numbers is not one of 3 by 2.

    >>> without_idle_blanks("  1   + 2\r\n\n= ? ")
    '1 + 2\n= ?'
    """
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _distinct_prompts(rows: Sequence[RawPrompt], params: PromptsParams) -> dict[str, tuple[list[Message], RawPrompt]]:
    """Chat and row of each distinct prompt by its id, in the order of the rows."""
    first: dict[tuple[tuple[str, str], ...], RawPrompt] = {}
    distinct: dict[str, tuple[list[Message], RawPrompt]] = {}
    for row in rows:
        messages = chat_of(row.prompt, params.system, params.template)
        content = tuple((each["role"], without_idle_blanks(each["content"])) for each in messages)
        twin = first.setdefault(content, row)
        if twin is row:
            _check_hidden_tests(row, params)
            distinct[prompt_id_of(messages)] = (messages, row)
        elif (row.verifier or params.verifier_name) == "math" and twin.answer != row.answer:
            problem = f"its prompt is that of {twin.where}, but its answer is {row.answer!r}, not {twin.answer!r}"
            raise BadInput(row.where, problem, "Correct one of the answers, or remove a row")
        elif (row.verifier or params.verifier_name) == "code" and twin.metadata != row.metadata:
            problem = f"its prompt is that of {twin.where}, but its hidden tests are others"
            raise BadInput(row.where, problem, "Put the tests of both into one row, or remove a row")
    return distinct


def _check_hidden_tests(row: RawPrompt, params: PromptsParams) -> None:
    """A `BadInput` where the verifier is code and the row's hidden tests can't be read: before any rollout is made."""
    if (row.verifier or params.verifier_name) != "code":
        return
    try:
        read_tests(row.metadata or "null")
    except ValueError as error:
        key = params.source.metadata or "metadata"
        remedy = "Mend the hidden tests in this row, or remove it; the README shows what they look like"
        raise BadInput(f"{row.where}: {key}", str(error), remedy) from error


def _too_few(params: PromptsParams, n_distinct: int, n_rows: int) -> BadInput:
    needed = params.train_size + params.eval_size
    problem = (
        f"train_size {params.train_size} and eval_size {params.eval_size} need {needed} distinct prompts, "
        f"and the source gives {n_distinct} (of {n_rows} rows)"
    )
    more = "Raise source.size, widen a task's config" if params.source.reasoning_gym else "Add rows to the source"
    return BadInput(f"{PARAMS_FILE}: prompts", problem, f"{more}, or lower train_size or eval_size")
