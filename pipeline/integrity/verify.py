"""An iteration, or those of a run, held against every rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import BadInput
from pipeline.integrity import links, rollout_rules, update_rules, value_rules
from pipeline.integrity.evidence import TABLE_FILES, Evidence, gather
from pipeline.integrity.files import CheckoutFiles, CommittedFiles, Files, Hashes, file_problems
from pipeline.integrity.rules import Rule
from pipeline.params import load_params, parse_params
from pipeline.versioning.git import commit_of
from pipeline.versioning.lockfile import LOCKFILE, PIPELINE_FILE, Output, declared_outputs, parse_lock, uncached_paths
from pipeline.versioning.repository import Repository
from pipeline.versioning.runs import Iteration, lineage, lineage_of_revision, select_iterations

RULES: tuple[Rule, ...] = (*rollout_rules.RULES, *value_rules.RULES, *update_rules.RULES)
ROWS_NAMED = 3
"""How many of the rows that break a rule a problem names."""


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with `artifact` of `iteration`, which is None where it lies in a checkout."""

    iteration: str | None
    artifact: str
    what: str

    def __str__(self) -> str:
        return f"{self.iteration} {self.artifact}: {self.what}" if self.iteration else f"{self.artifact}: {self.what}"


@dataclass(frozen=True)
class _Subject:
    """An iteration, and what it is held against: its tag's `number` if it has one, and the iteration `before` it."""

    files: Files
    number: int | None
    before: Iteration | None
    before_lock: Mapping[str, Output] | None


def verify_checkout(checkout: Path) -> list[Problem]:
    """What is wrong with the iteration that lies in `checkout`.

    Raises:
        BadInput: there is none, or its params.yaml can't be read.
    """
    before = _parent(checkout)
    before_lock = None if before is None else parse_lock(_committed(checkout, before, LOCKFILE), LOCKFILE)
    return _verify(_Subject(CheckoutFiles(checkout), None, before, before_lock), Hashes())


def verify_run(repository: Repository, name: str) -> Iterator[tuple[Iteration, list[Problem]]]:
    """Each iteration that `name` (`demo`, `demo/0003` or `demo/0003..0010`) means, with what is wrong with it.

    Raises:
        BadInput: there is no such run or iteration.
    """
    line = lineage(repository, name.partition("/")[0])
    before_each = dict(zip((one.commit for one in line), [None, *line], strict=False))
    hashes, root = Hashes(), repository.root
    for iteration in select_iterations(repository, name):
        before = before_each[iteration.commit]
        lock = parse_lock(_committed(root, iteration, LOCKFILE), f"{LOCKFILE} of {iteration.name}")
        files = CommittedFiles(root, repository.cache_dir, iteration, lock)
        before_lock = parse_lock(_committed(root, before, LOCKFILE)) if before else None
        yield iteration, _verify(_Subject(files, iteration.number, before, before_lock), hashes)


def _verify(subject: _Subject, hashes: Hashes) -> list[Problem]:
    files = subject.files
    params_text, pipeline, lock_text = (_text(files, name) for name in (links.PARAMS, PIPELINE_FILE, LOCKFILE))
    params = parse_params(params_text, f"{links.PARAMS} of {files.name}")
    lock = parse_lock(lock_text, f"{LOCKFILE} of {files.name}")
    declared = declared_outputs(pipeline)
    evidence, own_problems = gather(files, params, declared)
    found = [
        *((LOCKFILE, f"it has no {path}, which {PIPELINE_FILE} declares") for path in declared if path not in lock),
        *file_problems(files, lock, uncached_paths(pipeline), hashes),
        *links.stage_problems(lock_text, params_text, lock),
        *links.parent_problems(params, subject.number, subject.before),
        *links.inheritance_problems(params, lock, subject.before_lock),
        *own_problems,
        *links.fingerprint_problems(evidence),
        *links.headline_problems(evidence),
    ]
    for rule in RULES:
        if all(table in evidence.tables for table in rule.needs):
            found += _broken(rule, evidence)
    name = None if subject.number is None else files.name
    return [Problem(name, artifact, what) for artifact, what in found]


def _broken(rule: Rule, evidence: Evidence) -> list[links.Problem]:
    """The rows that break `rule`, as one problem, if there are any."""
    rows = rule.find(evidence).collect()
    if rows.height == 0:
        return []
    key = rows.columns[0]
    named = [f"{key} {value}: {why}" for value, why in rows.sort(key).head(ROWS_NAMED).select(key, "why").iter_rows()]
    more = f"; and {rows.height - ROWS_NAMED:,} more" if rows.height > ROWS_NAMED else ""
    return [(TABLE_FILES[rule.table][0], f"{'; '.join(named)}{more} [{rule.name}]")]


def _parent(checkout: Path) -> Iteration | None:
    """The iteration that params.yaml names as the parent, if it is one."""
    params = load_params(checkout / links.PARAMS)
    if params.parent is None or commit_of(params.parent, checkout) is None:
        return None
    line = lineage_of_revision(checkout, params.parent)
    return line[-1] if line and line[-1].commit == params.parent else None


def _text(files: Files, path: str) -> str:
    content = files.text(path)
    if content is None:
        raise BadInput(f"{path} of {files.name}", "there is no such file", "Run `dvc repro` to make the iteration")
    return content.decode("utf-8", "replace")


def _committed(checkout: Path, iteration: Iteration, path: str) -> str:
    return _text(CommittedFiles(checkout, checkout, iteration, {}), path)
