"""One source file: its bytes, its syntax tree, and the position of every node.

Splices change only their own bytes. Encoding, byte order mark, line endings and tabs stay. A file that this Python or
libcst cannot parse is refused.
"""

from __future__ import annotations

import ast
import bisect
import io
import re
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, CodeSpan, MetadataWrapper, ParentNodeProvider

from slipstream.rewrite.errors import PatchError

_NEWLINE = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"
_Node = TypeVar("_Node", bound=cst.CSTNode)


class Splice(NamedTuple):
    """Replaces the source from `start` to `end`, in bytes of UTF-8, by `text`."""

    start: int
    end: int
    text: str


class SourceText:
    def __init__(self, path: Path, raw: bytes) -> None:
        self.path, self.raw = path, raw
        self._bom = _BOM if raw.startswith(_BOM) else b""
        if fault := _fault_in(path, raw):
            raise PatchError(_unreadable(path, fault))
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        self._encoding = encoding.removesuffix("-sig")
        self.text = raw[len(self._bom) :].decode(self._encoding)
        self.data = self.text.encode()
        try:
            wrapper = MetadataWrapper(cst.parse_module(self.text), unsafe_skip_copy=True)
            known = wrapper.resolve_many([ByteSpanPositionProvider, ParentNodeProvider])
        except (cst.ParserSyntaxError, RecursionError) as error:
            raise PatchError(_unreadable(path, str(error).partition("\n")[0])) from None
        self.module = wrapper.module
        self._spans = cast("Mapping[cst.CSTNode, CodeSpan]", known[ByteSpanPositionProvider])
        self._parents = cast("Mapping[cst.CSTNode, cst.CSTNode]", known[ParentNodeProvider])
        if self.module.code != self.text:
            raise PatchError(_unreadable(path, "libcst does not reproduce it exactly"))
        self._found: dict[type[cst.CSTNode], Sequence[cst.CSTNode]] = {}  # the uses of a name are requested many times
        self._starts = [0, *(found.end() for found in _NEWLINE.finditer(self.data))]

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        span = self._spans[node]
        return span.start, span.start + span.length

    def code(self, node: cst.CSTNode) -> str:
        start, end = self.span(node)
        return self.data[start:end].decode()

    def parents(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yields the enclosing nodes, the nearest first."""
        while (parent := self._parents.get(node)) is not None:
            yield parent
            node = parent

    def all(self, kind: type[_Node], inside: cst.CSTNode | None = None) -> list[_Node]:
        """Returns all nodes of this type, in the order of the text."""
        if inside is None and kind in self._found:
            return cast("list[_Node]", self._found[kind])
        nodes = _descendants(inside) if inside is not None else self._spans
        found = [node for node in nodes if isinstance(node, kind) and node in self._spans]
        found.sort(key=lambda node: (self._spans[node].start, -self._spans[node].length))
        if inside is None:
            self._found[kind] = found
        return found

    def line_of(self, offset: int) -> int:
        return bisect.bisect_right(self._starts, offset)

    def lines_of(self, node: cst.CSTNode) -> tuple[int, int]:
        start, end = self.span(node)
        return self.line_of(start), self.line_of(max(start, end - 1))

    def line_start(self, line: int) -> int:
        return self._starts[line - 1] if line <= len(self._starts) else len(self.data)

    def line(self, line: int) -> str:
        """Returns the line with its ending, or "" after the last line."""
        return self.data[self.line_start(line) : self.line_start(line + 1)].decode() if line > 0 else ""

    @property
    def num_lines(self) -> int:
        return len(self._starts)

    def indent_at(self, offset: int) -> str:
        """Returns the white space at the beginning of the line."""
        text = self.line(self.line_of(offset))
        return text[: len(text) - len(text.lstrip(" \t\f"))]

    @property
    def newline(self) -> str:
        return self.module.default_newline

    def spliced(self, splices: Iterable[Splice]) -> bytes:
        """Returns the file with these changes, as bytes in its own encoding. Changes at one place are applied in the
        given order.
        """
        pieces: list[bytes] = []
        at = 0
        for start, end, text in sorted(splices, key=lambda splice: splice.start):
            assert start >= at, "two edits change the same text"
            pieces += [self.data[at:start], text.encode()]
            at = end
        data = b"".join([*pieces, self.data[at:]])
        raw = self._bom + data.decode().encode(self._encoding)
        if fault := _fault_in(self.path, raw):
            raise PatchError(
                f"{self.path} would not be valid Python with this patch ({fault}), so no patch was made. This is a bug"
                " in slipstream. Remove techniques from the recipe until the patch works."
            )
        return raw


def _descendants(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _descendants(child)


def _fault_in(path: Path, raw: bytes) -> str:
    """Returns why Python cannot parse the source, or "" if it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SyntaxWarnings are about the user's code and appear when the script runs
            compile(raw, str(path), "exec", flags=ast.PyCF_ONLY_AST, dont_inherit=True)
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        what = getattr(error, "msg", None) or str(error)
        return f"{what}, line {line}" if line else what
    return ""


def _unreadable(path: Path, what: str) -> str:
    version = ".".join(str(part) for part in sys.version_info[:2])
    return (
        f"{path} cannot be read by Python {version} and libcst: {what}. If its syntax is newer, run slipstream with the"
        " Python that trains."
    )
