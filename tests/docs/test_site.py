"""The site has every page, links lead somewhere, and nothing is loaded from the network."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from slipstream.cli.group import COMMANDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
SETTINGS: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def links_of(page: Path) -> list[str]:
    text = _CODE.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))
    return [link for link in _LINK.findall(text) if "://" not in link]


def anchors_of(page: Path) -> set[str]:
    """As MkDocs and GitHub make them of plain headings."""
    heads = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", head).strip().lower().replace(" ", "-") for head in heads}


def test_the_navigation_names_every_page_once(hooks: ModuleType) -> None:
    named = hooks.pages_of(hooks.filled(SETTINGS["nav"]))
    written = [path.relative_to(DOCS).as_posix() for path in PAGES]
    results = [f"benchmarks/{path.name}" for path in hooks.RESULTS.glob("*.md")]
    assert sorted(named) == sorted(written + results)


def test_a_new_command_with_a_page_is_filled_in_where_help_lists_it(hooks: ModuleType) -> None:
    commands = next(section["Commands"] for section in hooks.filled(SETTINGS["nav"]) if "Commands" in section)
    assert commands == [f"{name}.md" for name in COMMANDS if f"{name}.md" in commands]
    assert {"check.md", "tune.md", "run.md", "patch.md"} <= set(commands)


def test_every_command_is_explained_somewhere() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in COMMANDS if f"$ slipstream {name}" not in text] == []


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("*.md")], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in links_of(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_links_stay_on_the_site(page: Path, hooks: ModuleType) -> None:
    """What lies outside of docs/ the site has not; of the rest only the results of benchmarks, which the hook adds."""
    targets = [(page.parent / link.partition("#")[0]).resolve() for link in links_of(page) if not link.startswith("#")]
    outside = [path for path in targets if not path.is_relative_to(DOCS)]
    assert [path for path in outside if path.parent != hooks.RESULTS] == []


def test_links_to_results_are_those_of_the_site(hooks: ModuleType) -> None:
    text = hooks.on_page_markdown("[x](../benchmarks/results/fit.md) [y](json.md)", page=None)
    assert text == "[x](benchmarks/fit.md) [y](json.md)"


def test_nothing_comes_from_the_network() -> None:
    assert SETTINGS["theme"]["font"] is False
    assert SETTINGS["plugins"] == ["search"], "the offline plugin loads a script from unpkg.com"
    assert "extra_javascript" not in SETTINGS
    assert [name for name in SETTINGS["extra_css"] if not (DOCS / name).is_file()] == []
