"""Pages that are written from the code say what the code says."""

from pathlib import Path

import pytest

from slipstream.cli.check import command as check
from slipstream.report.pages import PAGES, refresh

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    assert page == refresh(page, PAGES[name]()), f"docs/{name} is out of date: run `make docs`"


def test_every_option_of_check_is_explained() -> None:
    page = (DOCS / "check.md").read_text(encoding="utf-8")
    options = [name for parameter in check.params for name in parameter.opts if name.startswith("--")]
    assert [name for name in options if f"`{name}" not in page] == []


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="nowhere to write"):
        refresh("# A page", "a table")
