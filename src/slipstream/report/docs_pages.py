"""Writes the parts of docs/ that come from the code: `python -m slipstream.report.docs_pages docs`.

A test checks that these parts agree with the code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from slipstream.diagnose.causes import catalogue as causes
from slipstream.records import Environment
from slipstream.report.json_export.schema import Export
from slipstream.report.terminal.techniques import technique_page, techniques_table
from slipstream.techniques._core.catalogue import catalogue as techniques

_BEGIN, _END = "<!-- written from the code: make docs -->\n", "<!-- end -->\n"


def refresh(page: str, written: str) -> str:
    """Returns the page with the text between its two marks replaced by `written`."""
    head, begin, rest = page.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the page has no {_BEGIN.strip()!r} that is followed by {_END.strip()!r}")
    return f"{head}{_BEGIN}{written}{_END}{tail}"


def json_tables() -> str:
    """Returns a table for every struct of the exported document, the top level first."""
    return "\n".join(_tables(Export, "Top level", set()))


def _tables(struct: type[msgspec.Struct], title: str, done: set[type]) -> Iterator[str]:
    if struct in done:
        return
    done.add(struct)
    encoded = dict(zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True))
    hints = {encoded[name]: hint for name, hint in get_type_hints(struct, include_extras=True).items()}
    lines = [f"### {title}\n", "| name | type | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {_type_name(hint)} | {_meaning(hint)} |" for name, hint in hints.items()]
    yield "\n".join(lines) + "\n"
    for name, hint in hints.items():
        for nested in _structs(hint):
            if nested is not Environment:
                yield from _tables(nested, f"`{name}`", done)


def _meaning(hint: Any) -> str:
    return next((meta.description or "" for meta in get_args(hint)[1:] if isinstance(meta, msgspec.Meta)), "")


def _structs(hint: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for argument in get_args(hint):
        yield from _structs(argument)


def _type_name(hint: Any) -> str:
    """Returns the name of the type in JSON."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin is list:
        return f"array of {_type_name(arguments[0])}s"
    if origin is dict:
        return f"object of {_type_name(arguments[1])}s" if not get_args(arguments[1]) else "object"
    if origin in (Union, UnionType):
        return " or ".join(_type_name(argument) for argument in arguments)
    if origin is Literal:
        return "string"
    return {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}.get(hint, "object")


def findings_table() -> str:
    """Returns a table of all causes, each with the first paragraph of its module's docstring."""
    lines = ["| cause | what it means |", "|---|---|"]
    for cause, find in causes().items():
        opening = (import_module(find.__module__).__doc__ or "").strip().split("\n\n")[0]
        lines.append(f"| `{cause}` | {' '.join(opening.split())} |")
    return "\n".join(lines) + "\n"


# Pages with a part between two marks that is generated from the code.
PAGES: dict[str, Callable[[], str]] = {
    "json.md": json_tables,
    "findings.md": findings_table,
    "techniques.md": lambda: techniques_table(techniques()),
}


def whole_pages() -> dict[str, str]:
    """Returns the pages that are generated completely: one for each technique."""
    return {f"techniques/{ident}.md": technique_page(ident, each) for ident, each in techniques().items()}


def main(docs: Path) -> None:
    for name, write in PAGES.items():
        path = docs / name
        path.write_text(refresh(path.read_text(encoding="utf-8"), write()), encoding="utf-8")
    pages = whole_pages()
    for name, text in pages.items():
        (docs / name).parent.mkdir(exist_ok=True)
        (docs / name).write_text(text, encoding="utf-8")
    for path in (docs / "techniques").glob("*.md"):
        if f"techniques/{path.name}" not in pages:  # the technique was removed
            path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
