"""Planning a replay, and running it.

In bfloat16 the size of a batch changes how logits are rounded, and so, now and then, a token. So completions are never
rolled out alone: the iteration's requests are cut into shards as they were, and a shard that holds a wanted completion
is sampled whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from pipeline.errors import BadInput
from pipeline.params import SamplingParams
from pipeline.policy import load_tokenizer
from pipeline.replay.choice import Choice, StoredGroup, choose_completions, shards_with, stored_groups
from pipeline.replay.comparison import compare_completions
from pipeline.replay.conditions import changed_code, changed_conditions
from pipeline.sampling import OnProgress, SampledCompletion
from pipeline.sampling.engines import open_sampler
from pipeline.sampling.origin import Origin, describe_origin, rollouts_metadata
from pipeline.sampling.shards import run_shards
from pipeline.stored_iteration import BASE, POLICY, StoredIteration
from pipeline.table_io import read_table, table_metadata
from pipeline.tables import ROLLOUTS, SELECTION

ROLLOUTS_FILE, SELECTION_FILE = Path("data/rollouts.parquet"), Path("data/selection.parquet")
NEEDED = (BASE, POLICY, ROLLOUTS_FILE, SELECTION_FILE)
"""The artifacts of an iteration that a replay needs."""


@dataclass(frozen=True)
class Plan:
    """What is to be rolled out again, under `sampling`: the completions `wanted`, and the shards that hold them."""

    stored: StoredIteration
    sampling: SamplingParams
    folder: Path
    rollouts: pl.DataFrame
    recorded: Mapping[str, str]
    origin: Origin
    wanted: list[str]
    shards: list[list[StoredGroup]]
    longest_prompt: int

    @property
    def n_completions(self) -> int:
        """All that are sampled."""
        return sum(len(group.completion_ids) for shard in self.shards for group in shard)


@dataclass(frozen=True)
class Replay:
    """What came of it.

    `completions` has the columns of `COMPARISON`. `n_along` more were rolled out, and not compared. `changes` say what
    is not as it was when the iteration was sampled; where there is any, or the engine `is_repeatable` not, other tokens
    are no fault.
    """

    completions: pl.DataFrame
    again: Mapping[str, SampledCompletion]
    n_along: int
    changes: list[str]
    is_repeatable: bool

    @property
    def is_promised(self) -> bool:
        """Whether all completions have to be identical."""
        return self.is_repeatable and not self.changes

    @property
    def n_identical(self) -> int:
        """Completions with the same tokens and the same end."""
        return int(self.completions["is_identical"].sum())

    @property
    def n_shared_tokens(self) -> int:
        """Tokens before the first difference of their completion: those whose log-probabilities are compared."""
        return int(self.completions.select(pl.coalesce("first_difference", "n_tokens")).to_series().sum())

    @property
    def logprob_max_difference(self) -> float | None:
        """The largest, over those tokens, in nats."""
        largest = self.completions["logprob_max_difference"].max()
        return largest if isinstance(largest, float) else None

    @property
    def logprob_mean_difference(self) -> float | None:
        """The mean, over those tokens, in nats."""
        n_tokens = pl.coalesce("first_difference", "n_tokens")
        sums = self.completions.select(pl.col("logprob_mean_difference") * n_tokens).to_series().drop_nulls()
        return math.fsum(sums) / self.n_shared_tokens if self.n_shared_tokens else None


def plan_replay(stored: StoredIteration, sampling: SamplingParams, folder: Path, choice: Choice) -> Plan:
    """Plan the replay of what `choice` chooses of `stored`, whose artifacts `NEEDED` are laid out in `folder`.

    `sampling` is what its params have, but for what decides no token, as where servers are.

    Raises:
        BadInput: an artifact is damaged, the policy is not the one that the rollouts are on record to be of, or there
            is no such completion.
    """
    params = stored.params
    name = stored.iteration.name
    rollouts = read_table(folder / ROLLOUTS_FILE, ROLLOUTS)
    selection = read_table(folder / SELECTION_FILE, SELECTION)
    recorded = table_metadata(folder / ROLLOUTS_FILE)
    origin = describe_origin(folder / POLICY, folder / BASE, sampling)
    check_policy(recorded, origin, name)
    seed_scope = recorded.get("seed_scope", "completion")
    groups = stored_groups(rollouts, selection, params.rollout.group_size, (params.seed, params.iteration), seed_scope)
    wanted = choose_completions(groups, choice, name)
    shards = shards_with(groups, wanted, sampling.completions_per_shard)
    longest = max(len(group.request.prompt_token_ids) for group in groups)
    return Plan(stored, sampling, folder, rollouts, recorded, origin, wanted, shards, longest)


def check_policy(recorded: Mapping[str, str], origin: Origin, name: str) -> None:
    """Raise `BadInput` unless the policy is the one that the rollouts of the iteration `name` were sampled from."""
    made_by = recorded.get("policy_fingerprint")
    if made_by != origin.policy_fingerprint:
        problem = f"its fingerprint is {origin.policy_fingerprint}, and its rollouts are on record to be of {made_by}"
        raise BadInput(f"policy of {name}", problem, f"`rollbook verify {name}` says what else does not fit")


def run_replay(plan: Plan, on_progress: OnProgress) -> Replay:
    """Sample the shards of `plan`, and compare what was wanted of them."""
    policy, base = plan.folder / POLICY, plan.folder / BASE
    sampler = open_sampler(policy, base, load_tokenizer(base), plan.sampling, plan.longest_prompt)

    def sample(shard: list[StoredGroup]) -> dict[str, SampledCompletion]:
        sampled = sampler.sample([group.request for group in shard], on_progress)
        return {
            completion_id: completion
            for group, completions in zip(shard, sampled, strict=True)
            for completion_id, completion in zip(group.completion_ids, completions, strict=True)
        }

    found = {key: value for shard in run_shards(sampler, plan.shards, sample) for key, value in shard.items()}
    again = {completion_id: found[completion_id] for completion_id in plan.wanted}
    completions = compare_completions(plan.rollouts, again)
    return Replay(completions, again, len(found) - len(again), _changes(plan, again), plan.origin.is_repeatable)


def _changes(plan: Plan, again: Mapping[str, SampledCompletion]) -> list[str]:
    """What was not as when the iteration was sampled, in words; to be asked once sampling is over."""
    iteration, root = plan.stored.iteration, plan.stored.repository.root
    changes = changed_conditions(plan.recorded, rollouts_metadata(plan.origin, plan.sampling))
    edited = changed_code(root, iteration.commit)
    if edited:
        changes.append(f"code: not as in {iteration.name} are {', '.join(edited)}")
    seeds = dict(plan.rollouts.select("completion_id", "seed").iter_rows())
    n_other_seeds = sum(completion.seed != seeds[completion_id] for completion_id, completion in again.items())
    if n_other_seeds:
        changes.append(f"seed: that of {n_other_seeds} completions is not the one on record")
    return changes
