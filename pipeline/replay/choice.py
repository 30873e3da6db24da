"""Which stored completions are rolled out again, and the shards that hold them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import polars as pl

from pipeline.errors import BadInput
from pipeline.rollouts import make_requests
from pipeline.sampling import SampleRequest
from pipeline.sampling.shards import cut_shards
from pipeline.seeds import stable_hash


@dataclass(frozen=True)
class Choice:
    """The completion `completion_id`, or `n_completions` that `seed` draws, or all."""

    completion_id: str | None = None
    n_completions: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class StoredGroup:
    """A group of an iteration, and the request that it was sampled for."""

    group_id: str
    request: SampleRequest

    @property
    def completion_ids(self) -> list[str]:
        """In the order of the request's seeds."""
        return [f"{self.group_id}/{index}" for index in range(len(self.request.seeds))]


def stored_groups(
    rollouts: pl.DataFrame, selection: pl.DataFrame, group_size: int, seed_parts: Sequence[object], seed_scope: str
) -> list[StoredGroup]:
    """The groups of an iteration in the order in which they were asked for, on which the cut into shards depends.

    Seeds are the stored ones. Where a shard had one for all of its completions, those of the requests, which it is made
    of, are made again from `seed_parts`.

    Raises:
        BadInput: the rollouts are not those of the selection.
    """
    by_prompt = {
        prompt_id: rows.sort("completion_index")
        for (prompt_id,), rows in rollouts.partition_by("prompt_id", as_dict=True).items()
    }
    prompt_ids = selection.sort("position")["prompt_id"].to_list()
    if set(prompt_ids) != set(by_prompt):
        problem = "its prompts are not those of data/selection.parquet"
        raise BadInput("data/rollouts.parquet", problem, "`rollbook verify RUN/K` says more")
    token_ids = [by_prompt[prompt_id]["prompt_token_ids"][0].to_list() for prompt_id in prompt_ids]
    requests = make_requests(prompt_ids, token_ids, group_size, *seed_parts)
    if seed_scope != "shard":
        seeds = (by_prompt[prompt_id]["seed"].to_list() for prompt_id in prompt_ids)
        requests = [replace(request, seeds=own) for request, own in zip(requests, seeds, strict=True)]
    group_ids = [by_prompt[prompt_id]["group_id"][0] for prompt_id in prompt_ids]
    return [StoredGroup(group_id, request) for group_id, request in zip(group_ids, requests, strict=True)]


def choose_completions(groups: Sequence[StoredGroup], choice: Choice, name: str) -> list[str]:
    """The ids of the chosen completions of the iteration `name`; a drawn choice is of as many groups as can be.

    Raises:
        BadInput: there is no such completion.

    >>> groups = [StoredGroup(name, SampleRequest([1], [1, 2, 3])) for name in ("0000/a", "0000/b")]
    >>> [each.rpartition("/")[0] for each in choose_completions(groups, Choice(n_completions=2), "demo/0000")]
    ['0000/a', '0000/b']
    """
    every = [completion_id for group in groups for completion_id in group.completion_ids]
    if choice.completion_id is not None:
        if choice.completion_id not in every:
            remedy = f"`rollbook sql --run {name} 'select completion_id from rollouts'` lists them"
            raise BadInput(f"completion {choice.completion_id}", f"{name} has no such completion", remedy)
        return [choice.completion_id]
    if choice.n_completions is None:
        return every

    def draw(completion_id: str) -> str:
        return stable_hash(choice.seed, completion_id)

    turns = [
        (turn, draw(completion_id), completion_id)
        for group in groups
        for turn, completion_id in enumerate(sorted(group.completion_ids, key=draw))
    ]
    return sorted(completion_id for _, _, completion_id in sorted(turns)[: choice.n_completions])


def shards_with(
    groups: Sequence[StoredGroup], completion_ids: Collection[str], completions_per_shard: int
) -> list[list[StoredGroup]]:
    """The shards that hold any of `completion_ids`, whole, as the iteration cut them."""
    wanted = {completion_id.rpartition("/")[0] for completion_id in completion_ids}
    cut = cut_shards([group.request for group in groups], completions_per_shard)
    shards = [[groups[index] for index in indices] for indices in cut]
    return [shard for shard in shards if any(group.group_id in wanted for group in shard)]
