"""Generated pages match the code."""

from pathlib import Path

import click
import pytest

from slipstream.cli.check import command as check
from slipstream.cli.run import command as run
from slipstream.cli.tune import command as tune
from slipstream.report.docs_pages import PAGES, main, refresh, whole_pages

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    assert page == refresh(page, PAGES[name]()), f"docs/{name} is out of date: run `make docs`"


def test_every_technique_has_a_page_and_no_page_is_left_over() -> None:
    pages = {f"techniques/{path.name}": path.read_text(encoding="utf-8") for path in DOCS.glob("techniques/*.md")}
    assert pages == whole_pages(), "docs/techniques/ is out of date: run `make docs`"


def test_writing_the_docs_twice_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "techniques").mkdir()
    (tmp_path / "techniques/gone.md").write_text("of a technique that is no more")
    for name in PAGES:
        (tmp_path / name).write_bytes((DOCS / name).read_bytes())
    main(tmp_path)
    first = {path: path.read_bytes() for path in tmp_path.rglob("*.md")}
    main(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.md")} == first
    assert not (tmp_path / "techniques/gone.md").exists()


@pytest.mark.parametrize("command", [check, tune, run], ids=lambda command: command.name)
def test_every_option_is_explained(command: click.Command) -> None:
    page = (DOCS / f"{command.name}.md").read_text(encoding="utf-8")
    options = [name for parameter in command.params for name in parameter.opts if name.startswith("--")]
    assert options
    assert [name for name in options if f"`{name}" not in page] == []


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="that is followed by"):
        refresh("# A page", "a table")
