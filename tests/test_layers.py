"""Who may import whom, over the real import graph, and whether dvc.yaml names everything that a stage depends on."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.metrics import KEYS
from pipeline.params import Params
from pipeline.presets import PRESETS
from stages import paths

ROOT = Path(__file__).resolve().parent.parent
STAGES = [
    *("prompts", "base", "start", "select", "rollout", "score"),
    *("normalize", "filter", "update", "evaluate", "report"),
]
WITHOUT_TORCH = ["prompts", "start", "select", "score", "normalize", "filter", "evaluate", "report"]

PLUMBING = {
    "pipeline/api_keys.py",
    "pipeline/errors.py",
    "pipeline/fingerprint.py",
    "pipeline/metrics.py",
    "pipeline/openmp.py",
    "pipeline/params.py",
    "pipeline/params_errors.py",
    "pipeline/params_report.py",
    "pipeline/params_sampling.py",
    "pipeline/params_sections.py",
    "pipeline/params_training.py",
    "pipeline/presets.py",
    "pipeline/table_checks.py",
    "pipeline/table_io.py",
    "pipeline/tables.py",
    "pipeline/versioning/artifacts.py",
    "pipeline/versioning/git.py",
    "pipeline/versioning/lockfile.py",
    "pipeline/versioning/objects.py",
    "pipeline/versioning/remote.py",
    "pipeline/versioning/repository.py",
    "stages/inputs.py",
    "stages/paths.py",
    "stages/progress.py",
    "stages/runner.py",
}
"""Exempt from `deps`, with the `__init__.py` of packages: they carry values and determine none."""

# Which third-party package may be imported where; a folder admits what is in it.
ONLY_IN = {
    "torch": [
        "pipeline/sampling/",
        "pipeline/training/",
        "pipeline/policy.py",
        "pipeline/base_model.py",
        "pipeline/rewards/terms/reward_model.py",
        "stages/update.py",
    ],
    "torch.distributed": ["pipeline/training/distributed.py", "pipeline/training/launch.py"],
    "safetensors.torch": ["pipeline/training/"],
    "transformers": [
        "pipeline/sampling/",
        "pipeline/training/block_attention.py",
        "pipeline/training/forward.py",
        "pipeline/training/grouped_attention.py",
        "pipeline/policy.py",
        "pipeline/base_model.py",
        "pipeline/rewards/terms/reward_model.py",
    ],
    "peft": ["pipeline/sampling/", "pipeline/policy.py", "pipeline/base_model.py"],
    "prefect": ["prefect_flows/"],
    "vllm": ["pipeline/sampling/vllm_engine.py"],
}

FLOWS_MAY_IMPORT = (
    "pipeline.errors",
    "pipeline.health",
    "pipeline.history",
    "pipeline.history_rows",
    "pipeline.integrity",
    "pipeline.metrics",
    "pipeline.params",
    "pipeline.params_edit",
    "pipeline.summary",
    "pipeline.table_io",
    "pipeline.tables",
    "pipeline.versioning",
)
"""Of the project, beside each other; a package admits what is in it."""


# The import graph -----------------------------------------------------------------------------------------------------


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, relative to the root, of every module of the project."""
    found = {}
    for package in ("pipeline", "prefect_flows", "stages"):
        for file in sorted((ROOT / package).rglob("*.py")):
            path = file.relative_to(ROOT)
            parts = path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts
            found[".".join(parts)] = path
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """Dotted names that `module` imports anywhere in it, within functions too."""
    path = modules()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            names.update(f"{source}.{alias.name}" for alias in node.names)
    return frozenset(names)


def first_party(module: str) -> Iterator[str]:
    """The project's modules that importing `module` imports, the packages that they are in included."""
    for name in imports(module):
        parts = name.split(".")
        yield from (prefix for end in range(1, len(parts) + 1) if (prefix := ".".join(parts[:end])) in modules())


def closure(module: str) -> set[str]:
    """`module` and all that it imports, and what these import."""
    reached: set[str] = set()
    frontier = {module}
    while frontier:
        reached |= frontier
        frontier = {name for here in frontier for name in first_party(here)} - reached
    return reached


def test_the_graph_is_seen() -> None:
    assert "pipeline.table_io" in set(first_party("stages.normalize"))
    assert "pipeline.errors" in closure("stages.normalize")
    assert "torch" in {name.split(".")[0] for name in imports("pipeline.policy")}
    assert "peft.PeftModel" in imports("pipeline.policy")  # imported within a function


@pytest.mark.parametrize("module", [name for name in modules() if name.startswith("pipeline")])
def test_the_library_imports_no_stage_and_no_flow(module: str) -> None:
    assert not [name for name in imports(module) if name.split(".")[0] in ("stages", "prefect_flows", "tests")]


@pytest.mark.parametrize("module", [name for name in modules() if name.startswith("stages")])
def test_a_stage_imports_no_flow(module: str) -> None:
    assert not [name for name in imports(module) if name.split(".")[0] in ("prefect_flows", "tests")]


@pytest.mark.parametrize("module", [name for name in modules() if name.startswith("prefect_flows")])
def test_a_flow_imports_no_stage_and_little_of_the_library(module: str) -> None:
    allowed = (*FLOWS_MAY_IMPORT, "prefect_flows")
    own = [name for name in imports(module) if name.split(".")[0] in ("pipeline", "prefect_flows", "stages", "tests")]
    assert [name for name in own if not any(name == place or name.startswith(f"{place}.") for place in allowed)] == []


@pytest.mark.parametrize("module", [name for name in modules() if name.startswith("prefect_flows")])
def test_a_flow_starts_without_torch(module: str) -> None:
    heavy = {"torch", "transformers", "peft", "datasets"}
    assert [one for one in closure(module) if heavy & {name.split(".")[0] for name in imports(one)}] == []


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_imports_no_other_stage(stage: str) -> None:
    others = {f"stages.{other}" for other in STAGES if other != stage}
    assert not closure(f"stages.{stage}") & others


@pytest.mark.parametrize("package", ONLY_IN)
def test_a_heavy_package_is_imported_only_where_it_belongs(package: str) -> None:
    users = [
        modules()[module].as_posix()
        for module in modules()
        if any(name == package or name.startswith(f"{package}.") for name in imports(module))
    ]
    assert [path for path in users if not any(path.startswith(place) for place in ONLY_IN[package])] == []


def test_light_stages_start_without_torch() -> None:
    """One process imports them all, and says after which of them torch was there."""
    lines = ["import importlib, sys", "heavy = {'torch', 'transformers', 'peft', 'datasets'}"]
    for stage in WITHOUT_TORCH:
        lines += [f"importlib.import_module('stages.{stage}')", "found = heavy & sys.modules.keys()"]
        lines += [f"if found: sys.exit(f'{stage} imports {{found}}')"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


# dvc.yaml -------------------------------------------------------------------------------------------------------------


@cache
def dvc_stages() -> dict[str, Any]:
    value: dict[str, Any] = YAML(typ="safe", pure=True).load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    return value


def code_deps(stage: str) -> list[str]:
    return [path for path in dvc_stages()[stage]["deps"] if not Path(path).is_relative_to(paths.DATA)]


def outputs(stage: str) -> dict[str, dict[str, Any]]:
    """Path -> options of everything that the stage writes."""
    entry = dvc_stages()[stage]
    listed = [*entry.get("outs", []), *entry.get("metrics", []), *entry.get("plots", [])]
    return {
        path: options for item in listed for path, options in (item.items() if isinstance(item, dict) else [(item, {})])
    }


def covers(dep: str, path: str) -> bool:
    return path == dep or path.startswith(f"{dep}/")


def is_exempt(path: str) -> bool:
    return path in PLUMBING or path.endswith("/__init__.py")


def test_the_eleven_stages_come_in_order() -> None:
    assert list(dvc_stages()) == STAGES == list(KEYS)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_its_module_and_leaves_metrics(stage: str) -> None:
    assert dvc_stages()[stage]["cmd"] == f"python -m stages.{stage}"
    assert dvc_stages()[stage]["desc"]
    # An output outside the cache keeps DVC from restoring a stage's earlier results: only the headline is in Git.
    assert outputs(stage)[f"data/metrics/{stage}.json"].get("cache", True) is (stage != "report")


@pytest.mark.parametrize("stage", STAGES)
def test_deps_name_all_code_that_determines_a_stage(stage: str) -> None:
    used = {modules()[module].as_posix() for module in closure(f"stages.{stage}")}
    deps = code_deps(stage)
    assert [path for path in sorted(used) if not is_exempt(path) and not any(covers(dep, path) for dep in deps)] == []
    assert [dep for dep in deps if not (ROOT / dep).exists()] == []
    assert [dep for dep in deps if not any(covers(dep, path) for path in used)] == []


def test_the_list_of_plumbing_is_current() -> None:
    files = {path.as_posix() for path in modules().values()}
    used = {modules()[module].as_posix() for stage in STAGES for module in closure(f"stages.{stage}")}
    assert files >= PLUMBING
    assert used >= PLUMBING
    named = {dep for stage in STAGES for dep in code_deps(stage)}
    assert not named & PLUMBING


@pytest.mark.parametrize("stage", STAGES)
def test_data_that_is_read_was_written_by_an_earlier_stage(stage: str) -> None:
    earlier = {path for other in STAGES[: STAGES.index(stage)] for path in outputs(other)}
    sources = {"data/sources"}  # a person's own prompt files
    read = [path for path in dvc_stages()[stage]["deps"] if path not in code_deps(stage)]
    assert [path for path in read if path not in earlier | sources] == []


def test_every_output_has_one_stage() -> None:
    written = [path for stage in STAGES for path in outputs(stage)]
    assert len(written) == len(set(written))


def paths_named(module: str) -> set[str]:
    """The values of `paths.<NAME>` in the functions of a module of the stages."""
    functions = [node for node in tree_of(module).body if isinstance(node, ast.FunctionDef)]
    return {
        getattr(paths, node.attr).as_posix()
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "paths"
    }


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse((ROOT / modules()[module]).read_text(encoding="utf-8"))


@pytest.mark.parametrize("stage", STAGES)
def test_every_path_that_a_stage_names_is_in_its_entry(stage: str) -> None:
    known = {*dvc_stages()[stage]["deps"], *outputs(stage)}
    named = {path for path in paths_named(f"stages.{stage}") if not path.startswith(".rollbook/")}  # no artifacts
    assert named, "the stage names no path: has `paths` another name?"
    assert [path for path in sorted(named) if not any(covers(path, entry) for entry in known)] == []


# Params ---------------------------------------------------------------------------------------------------------------


def sections_read(stage: str) -> set[str]:
    """The sections of `Params` that functions of the stage read off an argument annotated `Params`."""
    found: set[str] = set()
    for function in ast.walk(tree_of(f"stages.{stage}")):
        if isinstance(function, ast.FunctionDef):
            whole = {
                argument.arg
                for argument in function.args.args
                if isinstance(argument.annotation, ast.Name) and argument.annotation.id == "Params"
            }
            found |= {
                node.attr
                for node in ast.walk(function)
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in whole
            }
    return found


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_lists_just_the_sections_that_it_reads(stage: str) -> None:
    listed = set(dvc_stages()[stage]["params"])
    read = sections_read(stage)
    assert listed <= set(Params.model_fields)
    assert listed == read | ({"preset"} if read & {*PRESETS["grpo"]} else set()), "a preset fills in sections"


def test_the_library_gets_sections_and_never_the_whole() -> None:
    """Else a stage could read, through the library, a section that dvc.yaml doesn't list for it."""
    reached = {module for stage in STAGES for module in closure(f"stages.{stage}")}
    users = [module for module in reached if "pipeline.params.Params" in imports(module)]
    assert [module for module in users if module.startswith("pipeline.") and module != "pipeline.params"] == []


# Machine paths --------------------------------------------------------------------------------------------------------

TEXT = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".json", ".jsonl", ".html", ".css", ".j2", ".cfg", ".sh", ""}


def project_files() -> list[Path]:
    """Files that Git tracks or would."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a Git checkout")
    return [
        path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file() and path.suffix in TEXT
    ]


def test_no_file_names_a_place_on_one_machine() -> None:
    places = "|".join(["work", "root"])
    absolute = re.compile(rf"(?<![\w.~:/-])/(?:{places})(?=[/\s'\"`).,]|$)", re.MULTILINE)
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in project_files()
        for match in absolute.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []
