"""What all pages share: the templates and their filters, the script with its hash, the group browser."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pipeline.audit.registry import QUESTIONS
from pipeline.report.choice import Choice
from pipeline.report.embedding import as_script, sign_names
from pipeline.report.text import SIGN_PATTERN, inert
from pipeline.summary import decimal, interval, percent


@dataclass(frozen=True)
class Browser:
    """The group browser of a page: its data, which groups these are, and the command for the others."""

    data: Markup
    note: str
    rest: str = ""
    against_note: str = ""


def make_browser(
    choice: Choice,
    groups: list[dict[str, Any]],
    rest: str,
    show: str = "rollbook show",
    against: str = "",
    against_note: str = "",
) -> Browser:
    """The browser of `groups`, as `embed_groups` gives them.

    `show` is the command that shows what an id after it names, and `against` the name of the other commit, if any.
    """
    completions = [completion for group in groups for completion in group["completions"]]
    n_cut = sum(len(completion["completion_text"]) < completion["n_characters"] for completion in completions)
    cut = _said_of_cut(n_cut)
    signs = {"signs": SIGN_PATTERN, "sign_names": sign_names(groups)}
    data = {"groups": groups, **signs, "show": show, "against": against}
    return Browser(as_script(data), f"{choice.note}{cut}", "" if choice.is_everything else rest, against_note)


def _said_of_cut(n: int) -> str:
    some = "1 text is cut, and" if n == 1 else f"{n:,} texts are cut, and"
    return f"; {some} searched as far as on this page" if n else ""


@dataclass(frozen=True)
class Asked:
    """What the commands of a page ask: its name, and the options that say so; else the iteration in `data/`."""

    name: str = "this iteration"
    options: str = ""


def render(template: str, browser: Browser, values: Mapping[str, Any], asked: Asked | None = None) -> str:
    """The page `template` as HTML, complete in itself: style, charts, data and script inside, nothing to load."""
    script = read_script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shared = {
        "browser": browser,
        "script": Markup(script),
        "script_hash": f"sha256-{digest}",
        "questions": list(QUESTIONS.values()),
        "asked": asked or Asked(),
    }
    return _environment().get_template(template).render({**values, **shared})


@cache
def read_script() -> str:
    """The module that the files in `browser/` make, in the order of their names."""
    folder = files("pipeline.report") / "browser"
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.iterdir(), key=lambda file: file.name))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("pipeline.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(inert=inert, decimal=decimal, percent=percent, interval=interval)
    return environment
