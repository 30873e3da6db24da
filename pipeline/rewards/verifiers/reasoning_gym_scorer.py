"""Runs in a worker: the scorers of reasoning-gym's own tasks."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.rewards.workers import describe

_NONSENSE = "?!"


def score(metadata: str, answer: str | None) -> tuple[float | None, str | None]:
    """The task's own score of `answer`, from 0 to 1, and what went wrong; null where the prompt can't be judged.

    No answer scores 0, and so does one that the task's scorer can't digest: a task reads only the form that its
    question asked for.
    """
    error = check_reference(metadata)
    if error:
        return None, error
    if answer is None:
        return 0.0, None
    try:
        return _score(metadata, answer), None
    except Exception as failure:  # whatever a scorer raises on an answer
        return 0.0, f"the task's scorer raised on this answer: {describe(failure)}"


@lru_cache(maxsize=4096)
def check_reference(metadata: str) -> str | None:
    """Why no answer to this prompt can be judged, or None: its own answer must score 1, and nonsense must not."""
    try:
        answer = json.loads(metadata)["entry"]["answer"]
        if answer is not None and (own := _score(metadata, answer)) != 1:
            return f"metadata: the prompt's own answer scores {own:g}, not 1, so its task can't be scored from JSON"
    except Exception as error:  # the text is a person's, the scorer a library's: anything can come
        return f"metadata: it is no entry of a reasoning_gym task ({describe(error)})"
    try:
        return "metadata: the task's scorer calls any answer correct" if _score(metadata, _NONSENSE) == 1 else None
    except Exception:  # it refuses nonsense, as it should
        return None


def _score(metadata: str, answer: str) -> float:
    content = json.loads(metadata)  # anew each time, as a scorer may change its entry
    scorer = _scorer(content["task"], json.dumps(content["config"]))
    with redirect_stdout(None), warnings.catch_warnings(action="ignore"):
        value = float(scorer(answer, content["entry"]))
    if not 0 <= value <= 1:
        raise ValueError(f"a score of {value} is not in 0 to 1")
    return value


@lru_cache(maxsize=256)
def _scorer(task: str, config: str) -> Callable[[str, dict[str, Any]], float]:
    dataset_class, config_class = import_task(task)
    dataset = dataset_class(config=config_class(**json.loads(config)))
    scorer: Callable[[str, dict[str, Any]], float] = dataset.score_answer
    return scorer


def import_task(task: str) -> tuple[Any, Any]:
    """The classes of a task's data set and config, importing as few of reasoning-gym's other hundred tasks as possible.

    `import reasoning_gym` imports them all, and matplotlib and sympy with them, which takes more than a second. Most
    tasks are modules of their own name, which an empty package in its place lets us import by themselves.
    """
    package = importlib.util.find_spec("reasoning_gym")
    assert package is not None
    folders = list(package.submodule_search_locations or [])
    if "reasoning_gym" not in sys.modules:
        bare = types.ModuleType("reasoning_gym")
        bare.__path__ = folders
        bare.__spec__ = package
        sys.modules["reasoning_gym"] = bare
    for file in Path(folders[0]).glob(f"*/{task}.py"):
        importlib.import_module(f"reasoning_gym.{file.parent.name}.{task}")
    factory = importlib.import_module("reasoning_gym.factory")
    if task not in factory.DATASETS:
        del sys.modules["reasoning_gym"]
        importlib.import_module("reasoning_gym")
    classes: tuple[Any, Any] = factory.DATASETS[task]
    return classes
