"""Whether an iteration follows from the one before: its parent, what it took over, and stages that fit together."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ruamel.yaml import YAML

from pipeline.errors import BadInput, first_line
from pipeline.fingerprint import fingerprint_files
from pipeline.history_rows import read_history
from pipeline.integrity.evidence import TABLE_FILES, Evidence
from pipeline.integrity.files import Files
from pipeline.params import Params
from pipeline.params_edit import differing_keys
from pipeline.versioning.lockfile import LOCKFILE, Output
from pipeline.versioning.runs import Iteration

PARAMS, HEADLINE, HISTORY = "params.yaml", "data/metrics/report.json", "data/history.csv"
ADAPTER_CONFIG = "adapter_config.json"
INHERITED = {
    "data/next_policy": "data/policy",
    "data/next_prompt_stats.parquet": "data/prompt_stats.parquet",
    "data/next_trainer_state": "data/trainer_state",
}
"""What an iteration ends with -> what the next one begins with."""

Problem = tuple[str, str]
"""An artifact, and what is wrong with it."""


def parent_problems(params: Params, number: int | None, before: Iteration | None) -> Iterator[Problem]:
    """Whether params.yaml names this iteration, `number` by its tag, and as its parent the one `before` it."""
    if number is not None and params.iteration != number:
        yield PARAMS, f"iteration is {params.iteration}, and the tag says {number}"
    if params.parent != (before.commit if before else None):
        there = f"{before.name}, {before.commit}" if before else "none"
        yield PARAMS, f"parent is {params.parent}, and the iteration before is {there}"
    if before and before.number + 1 != params.iteration:
        yield PARAMS, f"iteration is {params.iteration}, and the one before it {before.name}: one is missing between"


def inheritance_problems(
    params: Params, lock: Mapping[str, Output], before: Mapping[str, Output] | None
) -> Iterator[Problem]:
    """Whether the iteration began with what the one before ended with, whose lock is `before`, by md5."""
    for theirs, ours in INHERITED.items():
        is_fresh = ours == "data/trainer_state" and params.start.fresh_optimizer
        if before is None or is_fresh or theirs not in before or ours not in lock:
            continue
        if before[theirs].md5 != lock[ours].md5:
            yield ours, f"its md5 is {lock[ours].md5}, and the iteration before ended with {before[theirs].md5}"


def stage_problems(lock_text: str, params_text: str, lock: Mapping[str, Output]) -> Iterator[Problem]:
    """Whether every stage read the params and artifacts that are here, as DVC noted them."""
    stages, params = (_load(text) for text in (lock_text, params_text))
    for name, stage in stages["stages"].items():
        noted = stage.get("params", {}).get(PARAMS, {})
        for key, (here, there) in differing_keys({key: _at(params, key) for key in noted}, noted).items():
            yield PARAMS, f"{key} is {here}, and stage {name} had {there}"
        for dep in stage.get("deps", ()):
            made = lock.get(dep["path"])
            if made is not None and made.md5 != dep.get("md5"):
                yield LOCKFILE, f"stage {name} read {dep['path']} {dep.get('md5')}, and {made.md5} is what was made"


def _load(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(io.StringIO(text))


def _at(params: Any, key: str) -> Any:
    """The value at a key of params.yaml such as `score.terms`; None where there is none."""
    for part in key.split("."):
        params = params.get(part) if isinstance(params, dict) else None
    return params


def fingerprint_problems(evidence: Evidence) -> Iterator[Problem]:
    """Whether the policy that is here is the one that the rollouts say they are from."""
    policy, base = (evidence.files.folder(name) for name in ("data/policy", "data/base"))
    noted = evidence.rollout_metadata().get("policy_fingerprint")
    if policy is None or (base is None and ADAPTER_CONFIG in policy):
        return
    folders = [policy, base or {}] if ADAPTER_CONFIG in policy else [policy]
    files = [(name, file) for folder in folders for name, file in sorted(folder.items())]
    if not all(file.is_file() for _, file in files):
        return  # that they are missing is a problem of its own
    found = fingerprint_files(files)
    if found != noted:
        artifact = TABLE_FILES["rollouts"][0]
        yield artifact, f"they are from the policy {noted}, and the fingerprint of data/policy is {found}"


def headline_problems(evidence: Evidence) -> Iterator[Problem]:
    """Whether the numbers that Git keeps of the iteration are those of its tables."""
    content = evidence.files.text(HEADLINE)
    if content is None or "rewards" not in evidence.tables:
        return
    try:
        headline = json.loads(content)
    except ValueError as error:
        yield HEADLINE, f"it is not valid JSON ({first_line(error)})"
        return
    if not isinstance(headline, dict):
        yield HEADLINE, "it is no JSON object"
        return
    rewards = evidence["rewards"].collect()
    expected = {
        "iteration": evidence.params.iteration,
        "n_completions": rewards.height,
        "reward_mean": rewards["reward"].mean(),
        "pass_rate": rewards["is_correct"].mean(),
    }
    yield from _differences(HEADLINE, headline, expected)
    yield from _history_problems(evidence.files, headline)


def _history_problems(files: Files, headline: Mapping[str, object]) -> Iterator[Problem]:
    text = files.text(HISTORY)
    if text is None:
        return
    try:
        rows = read_history(text.decode("utf-8", "replace"), HISTORY)
    except BadInput as error:
        yield HISTORY, str(error).removeprefix(f"{HISTORY}: ")
        return
    last = rows[-1] if rows else {}
    yield from _differences(HISTORY, last, {name: headline[name] for name in last if name in headline})


def _differences(artifact: str, found: Mapping[str, object], expected: Mapping[str, object]) -> Iterator[Problem]:
    for name, value in expected.items():
        other = found.get(name)
        is_close = (
            isinstance(value, int | float)
            and isinstance(other, int | float)
            and abs(value - other) <= 1e-9 * (1 + abs(value))
        )
        if not is_close and other != value:
            yield artifact, f"{name} is {other}, and should be {value}"
