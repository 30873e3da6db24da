from __future__ import annotations

import io
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.errors import BadInput
from pipeline.versioning import lockfile
from pipeline.versioning.lockfile import Output, parse_lock, read_cached_outputs, read_locks, uncached_paths
from tests.versioning.fabricated import PIPELINE, import_run, init, lock_text
from tests.versioning.project import Project

MD5 = "0123456789abcdef0123456789abcdef"
OUTPUTS = [
    Output("data/policy", f"{MD5}.dir", 90, 2),
    Output("data/rewards.parquet", MD5, 7),
    Output("data/history.csv", "1" * 32, 5),  # of digits only, so that YAML wants it quoted
]
LOCK = f"""schema: '2.0'
stages:
  start:
    cmd: python -m stages.start
    params:
      params.yaml:
        prompts:
          template: |-
            a line, and

            another
          outs:
          - path: data/not_an_output
    outs:
    - path: data/policy
      hash: md5
      md5: {MD5}.dir
      size: 90
      nfiles: 2
  report:
    cmd: python -m stages.report
    deps:
    - path: data/rewards.parquet
      hash: md5
      md5: {"f" * 32}
      size: 7
    outs:
    - path: data/rewards.parquet
      hash: md5
      md5: {MD5}
      size: 7
      isexec: true
    - path: data/history.csv
      hash: md5
      md5: '{"1" * 32}'
      size: 5
"""


def widely_indented(lock: str) -> str:
    """As some formatters of YAML write it."""
    yaml = YAML()
    yaml.indent(mapping=4, sequence=6, offset=4)
    text = io.StringIO()
    yaml.dump(yaml.load(lock), text)
    return text.getvalue()


def by_path(outputs: list[Output]) -> dict[str, Output]:
    return {output.path: output for output in outputs}


def test_outputs_are_read_and_dependencies_are_not() -> None:
    assert parse_lock(LOCK) == by_path(OUTPUTS)
    assert lockfile._parse_as_dvc_writes(LOCK) == by_path(OUTPUTS)


def test_what_dvc_writes_is_read_without_a_yaml_parser(project: Project) -> None:
    project.repro(project.root)
    text = (project.root / "dvc.lock").read_text()
    quick = lockfile._parse_as_dvc_writes(text)
    assert quick == lockfile._parse_as_yaml(text, "dvc.lock")
    assert quick is not None
    assert {"data/table.txt", "data/next_trainer_state", "data/history.csv"} <= quick.keys()
    assert quick["data/next_trainer_state"].n_files == 1


def test_a_lock_of_the_whole_pipeline_is_read_alike_both_ways() -> None:
    text = lock_text(OUTPUTS[1:])
    assert lockfile._parse_as_dvc_writes(text) == lockfile._parse_as_yaml(text, "dvc.lock") == by_path(OUTPUTS[1:])


@pytest.mark.parametrize(
    "text",
    [
        LOCK.replace("\n", "\r\n"),
        widely_indented(LOCK),
        LOCK.replace("data/policy", "'data/policy'"),
        LOCK.replace("      size: 7\n      isexec", "      size: 7\n      cloud: {}\n      isexec"),
        "# a comment\n" + LOCK,
        LOCK + "# a comment\n",
        LOCK.removesuffix("\n"),
    ],
)
def test_another_layout_is_read_as_yaml(text: str) -> None:
    assert lockfile._parse_as_dvc_writes(text) is None
    assert parse_lock(text) == by_path(OUTPUTS)


def test_a_flow_list_is_not_passed_over() -> None:
    flow = f"    outs: [{{path: data/policy, hash: md5, md5: {MD5}.dir, size: 90, nfiles: 2}}]\n"
    text = f"schema: '2.0'\nstages:\n  start:\n    cmd: run\n{flow}"
    assert parse_lock(text) == by_path(OUTPUTS[:1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has not the layout"),
        ("schema: '2.0'\n", "has not the layout"),
        ("[1, 2]", "has not the layout"),
        (LOCK.replace(f"      md5: {MD5}\n", ""), "has not the layout"),
        (
            LOCK.replace("      size: 5", "<<<<<<< HEAD\n      size: 5\n=======\n      size: 6\n>>>>>>> b"),
            "can.t be read as YAML",
        ),
        (LOCK[: LOCK.index("size: 7")] + "si", "can.t be read as YAML"),
    ],
)
def test_a_damaged_lock_is_named(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=f"dvc.lock in commit abc: it {message}"):
        parse_lock(text, "dvc.lock in commit abc")


def test_the_pipeline_says_what_git_keeps() -> None:
    assert uncached_paths(PIPELINE) == {"data/health.json", "data/history.csv", "data/metrics/report.json"}
    for text in ("[", "stages: 3", ""):
        with pytest.raises(BadInput, match=r"dvc\.yaml: it"):
            uncached_paths(text)


def test_locks_of_commits(tmp_path: Path, identity: None) -> None:
    init(tmp_path / "repo")
    locks = [lock_text([output]) for output in OUTPUTS[1:]]
    commits = import_run(tmp_path / "repo", "demo", locks)
    assert read_locks(commits, tmp_path / "repo") == [by_path([OUTPUTS[1]]), by_path([OUTPUTS[2]])]
    assert read_cached_outputs(commits, tmp_path / "repo") == [by_path([OUTPUTS[1]]), {}]
    assert read_locks([], tmp_path / "repo") == []
    with pytest.raises(BadInput, match=r"dvc\.lock in commit main: .* no such file, so it is no iteration"):
        read_locks([commits[0], "main"], tmp_path / "repo")
