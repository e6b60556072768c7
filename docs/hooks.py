"""What MkDocs is told beside mkdocs.yml: sections of the navigation that follow from the code and from folders, so that
a new command, technique or benchmark needs no line there, and the results of benchmarks/ as pages of the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slipstream.cli.group import COMMANDS

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"


def filled(nav: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The navigation of mkdocs.yml with the sections that it leaves open."""
    listed = set(pages_of(nav))
    found = {
        "Commands": [f"{name}.md" for name in COMMANDS if (DOCS / f"{name}.md").exists()],
        "Techniques": sorted(f"techniques/{path.name}" for path in DOCS.glob("techniques/*.md")),
        "Measured": sorted(f"benchmarks/{path.name}" for path in RESULTS.glob("*.md")),
    }
    return [
        {title: [*pages, *(page for page in found.get(title, []) if page not in listed)]}
        for section in nav
        for title, pages in section.items()
    ]


def pages_of(nav: list[dict[str, Any]]) -> list[str]:
    """Every file that it names, with a title of its own there or without."""
    entries = [page for section in nav for pages in section.values() for page in pages]
    return [name for page in entries for name in (page.values() if isinstance(page, dict) else [page])]


def on_config(config: Any) -> Any:
    config["nav"] = filled(config["nav"])
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for path in sorted(RESULTS.glob("*.md")):
        files.append(File.generated(config, f"benchmarks/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """In the repository the results lie outside of docs/, on the site inside."""
    return markdown.replace("../benchmarks/results/", "benchmarks/")
