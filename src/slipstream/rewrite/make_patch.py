"""Combines edits into one patch.

Every file is read once. Every edit is written, or was made already, or is left to the user with a reason. The whole
patch is refused if the source differs from what the session recorded and no earlier patch explains the difference. This
module writes no files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from slipstream.diagnose.hoisting import hoist
from slipstream.records import Edit, Site
from slipstream.rewrite.arguments import change_arguments
from slipstream.rewrite.checkpointing import compute_again
from slipstream.rewrite.detach import keep_without_graph
from slipstream.rewrite.environment import put_before_imports
from slipstream.rewrite.errors import ByHandError, MissingError, MovedError, PatchError
from slipstream.rewrite.grad_scaler import scale_loss
from slipstream.rewrite.hoist_conversion import convert_once
from slipstream.rewrite.names import ScopeNames
from slipstream.rewrite.no_grad import switch_gradients_off
from slipstream.rewrite.running_sums import keep_sum_on_device
from slipstream.rewrite.source import SourceText, Splice
from slipstream.rewrite.source_tree import SourceTree
from slipstream.rewrite.statements import call_otherwise, put_around, put_at_start, put_before, put_behind_input
from slipstream.store.safe_files import read_file

_LIMIT_BYTES: Final = 16 << 20  # maximum size of a source file


class ChangedFile(msgspec.Struct, frozen=True):
    path: Path
    before: bytes
    after: bytes


class LeftByHand(msgspec.Struct, frozen=True):
    """An edit that the user must make, with its place and the reason why it was not written."""

    edit: Edit
    where: str
    reason: str

    @property
    def text(self) -> str:
        edit = self.edit
        if edit.kind == "callee":
            return f"{edit.text} = {edit.argument}"
        if edit.kind in ("argument", "by_hand", "environment") and edit.argument not in ("", "int"):
            return f"{edit.argument}={edit.text}"
        if edit.kind == "around":
            return f"with {edit.text}:"
        return edit.text.replace("{model}", edit.argument or "model") if edit.kind == "before" else edit.text


class Patch(msgspec.Struct, frozen=True):
    files: list[ChangedFile]
    written: list[Edit]
    done: list[Edit]  # the source already has these edits
    left: list[LeftByHand]


def make_patch(edits: Sequence[Edit], tree: SourceTree) -> Patch:
    return _Patching(edits, tree).result()


class _Patching:
    def __init__(self, edits: Sequence[Edit], tree: SourceTree) -> None:
        self._tree = tree
        self._groups = _grouped(edits)
        self._edits = edits
        self._renamed = {edit.call: edit.text for edit in edits if edit.kind == "callee"}
        self._sources: dict[Path, SourceText] = {}
        self._splices: dict[Path, list[Splice]] = {}
        self._written: list[Edit] = []
        self._done: list[Edit] = []
        self._left: list[LeftByHand] = []
        self._moved: list[tuple[list[Edit], MovedError]] = []

    def result(self) -> Patch:
        for group in sorted(self._groups, key=lambda group: group[0].kind == "environment"):
            try:
                self._refuse_alone(group[0])
                made = [self._made(edits) for edits in _together(group)]
            except ByHandError as why:
                self._left += [LeftByHand(edit, _where(edit.site), edit.reason or str(why)) for edit in group]
                continue
            except MovedError as why:
                self._moved.append((group, why))
                continue
            for path, splices in made:
                self._splices.setdefault(path, []).extend(splices)
            (self._written if any(splices for _, splices in made) else self._done).extend(group)
        self._settle_moved()
        files = [self._changed(path, splices) for path, splices in self._splices.items() if splices]
        return Patch([file for file in files if file.after != file.before], self._written, self._done, self._left)

    def _settle_moved(self) -> None:
        """Handles edits whose line has moved. If the source already has all edits that can be written, an earlier patch
        has moved the lines of the other edits, which are then left to the user. If not, the source has changed, and the
        patch is refused.
        """
        for group, why in self._moved:
            if self._written or not self._done:
                raise why
            self._left += [
                LeftByHand(edit, _where(edit.site), edit.reason or "tune again to find the line") for edit in group
            ]

    def _refuse_alone(self, edit: Edit) -> None:
        """Refuses an environment variable if other edits of its technique could not be written, because the variable
        helps only together with these edits.
        """
        moved = [one for group, _ in self._moved for one in group]
        left = any(one.technique == edit.technique for one in (*(one.edit for one in self._left), *moved))
        if edit.kind == "environment" and left and edit.technique not in {one.technique for one in self._there()}:
            raise ByHandError(f"set it on the command line, together with the other edits of {edit.technique}")

    def _there(self) -> list[Edit]:
        return [*self._written, *self._done]

    def _changed(self, path: Path, splices: list[Splice]) -> ChangedFile:
        source = self._sources[path]
        lines = [f"import {module}{source.newline}" for module in ("slipstream", "torch")]
        imports = [splice for line in lines for splice in splices if splice.text == line]
        others = [splice for splice in splices if splice not in imports]
        once = list(dict.fromkeys(imports))
        return ChangedFile(path, source.raw, source.spliced([*once, *_closed_up(others, source.newline)]))

    def _made(self, edits: Sequence[Edit]) -> tuple[Path, list[Splice]]:
        first = edits[0]
        if first.kind == "by_hand":
            raise ByHandError(first.reason)
        if first.kind in _OF_SCRIPT:
            source = self._source(self._tree.script)
            return source.path, _OF_SCRIPT[first.kind](source, ScopeNames(source), first)
        if first.kind == "checkpoint":
            source = self._source(self._tree.module(first.argument))
            return source.path, compute_again(source, ScopeNames(source), first)
        if first.site is None:
            raise ByHandError(first.reason or "the session saw no line of the script for this edit")
        source = self._source(self._tree.file(first.site.file))
        return source.path, self._at_line(source, first.site, _writer(source, edits, self._renamed))

    def _source(self, path: Path) -> SourceText:
        if path not in self._sources:
            try:
                raw = read_file(path, _LIMIT_BYTES, may_be_link=True)
            except OSError as error:
                raise PatchError(f"{path} cannot be read: {error.strerror}.") from None
            self._sources[path] = SourceText(path, raw)
        return self._sources[path]

    def _at_line(self, source: SourceText, site: Site, write: Callable[[int], list[Splice]]) -> list[Splice]:
        """Makes the edit on the line that the session recorded. If that line has moved, the edit is not made. This
        method then only checks whether the source already has the edit.
        """
        if not site.text or source.line(site.line).strip() == site.text:
            return write(site.line)
        wanted = self._bare(site.text)
        for line in range(1, source.num_lines + 1):
            if self._bare(source.line(line).strip()) == wanted:
                try:
                    if not write(line):
                        return []
                except MissingError:
                    continue
        raise MovedError(
            f"{source.path}, line {site.line}, is not what the session recorded ({site.text})."
            " The source has changed since then. Tune it again: slipstream tune."
        )

    def _bare(self, line: str) -> str:
        """Returns the line without anything that this patch could have added."""
        for edit in self._edits:
            if edit.kind == "argument":
                line = re.sub(rf"(,\s*)?\b{edit.argument}=[^,()]*", "", line)
                line = re.sub(rf',\s*"{edit.argument}": [^,}}]*', "", line)
            elif edit.kind == "loader":  # the name of torch's class may be an alias
                line = re.sub(r"[\w.]+\(", "(", line)
            elif edit.kind == "callee":
                line = re.sub(rf"\b{edit.text}\(", f"{edit.call}(", line)
            elif edit.kind == "input":
                line = re.sub(rf"\.\w+\(memory_format=[\w.]*\)|{re.escape(edit.text)}", "", line)
            elif edit.kind in ("running_sum", "detached"):
                line = re.sub(r"\.(item|detach|double)\(\)|\bfloat\(", "", line)
            elif edit.kind == "convert_once" and edit.site is not None:
                line = _once_converted(line) if line == edit.site.text else line
                line = re.sub(r"\.(clone|copy)\(\)", "", line)
        return re.sub(r"[(),\s{}*]|\b(True|False|None|\d+)\b", "", line)  # values without a name may have changed


def _once_converted(line: str) -> str:
    """Returns the line after its conversion is hoisted. A comment at the end of the line stays."""
    _, mark, comment = line.partition("#")
    parts = hoist(line)
    names, values = [part.name for part in parts], [part.then + part.moves for part in parts]
    return f"{', '.join(names)} = {', '.join(values)} {mark}{comment}"


def _closed_up(splices: Sequence[Splice], newline: str) -> list[Splice]:
    """Joins statements that are inserted at one place. Only the first keeps the empty line above it and the import."""
    opened: set[int] = set()
    os_line = f"import os{newline * 2}"
    closed: list[Splice] = []
    for splice in splices:
        is_opening = splice.text.startswith(newline) and splice.start == splice.end
        text = splice.text.lstrip("\r\n") if is_opening and splice.start in opened else splice.text
        if text.startswith(os_line) and splice.start in opened:
            text = text[len(os_line) :]
        opened |= {splice.start} if is_opening or text.startswith(os_line) else set()
        closed.append(splice._replace(text=text))
    return closed


_OF_CALL: Final = ("argument", "loader")  # edits of one call, which are written together or not at all
_OF_SCRIPT: Final[dict[str, Callable[[SourceText, ScopeNames, Edit], list[Splice]]]] = {
    "start": put_at_start,
    "environment": put_before_imports,
}
_WRITERS: Final[dict[str, Callable[[SourceText, ScopeNames, int, Edit], list[Splice]]]] = {
    "before": put_before,
    "around": put_around,
    "callee": call_otherwise,
    "input": put_behind_input,
    "scaler": scale_loss,
    "without_grad": switch_gradients_off,
    "running_sum": keep_sum_on_device,
    "convert_once": convert_once,
    "detached": keep_without_graph,
}


def _writer(source: SourceText, edits: Sequence[Edit], renamed: Mapping[str, str]) -> Callable[[int], list[Splice]]:
    """Returns the function that makes these edits on a line. `renamed` maps the model's name to the name that this
    patch gives the model. A source that uses this name is already patched."""
    names, first = ScopeNames(source), edits[0]
    if first.kind in _OF_CALL:
        return lambda line: change_arguments(source, names, line, edits)

    def write(line: int) -> list[Splice]:
        try:
            return _WRITERS[first.kind](source, names, line, first)
        except MissingError:
            if first.call not in renamed:
                raise
            return _WRITERS[first.kind](source, names, line, msgspec.structs.replace(first, call=renamed[first.call]))

    return write


def _grouped(edits: Sequence[Edit]) -> list[list[Edit]]:
    """Groups edits that are written together or not at all: the arguments of one call, and the statements of one
    technique.
    """
    groups: dict[object, list[Edit]] = {}
    whole = {edit.technique for edit in edits if edit.kind in _WRITERS or edit.kind == "start"}
    for number, edit in enumerate(edits):
        key: object = (edit.technique,)
        if edit.kind in _OF_CALL and edit.site is not None:
            key = (edit.site.file, edit.site.line, edit.call)
        elif edit.kind == "by_hand" and edit.technique not in whole:
            key = number
        elif edit.kind == "environment":
            key = (edit.argument, edit.text)
        group = groups.setdefault(key, [])
        if not any(other.kind == "argument" == edit.kind and other.argument == edit.argument for other in group):
            group.append(edit)
    return list(groups.values())


def _together(group: list[Edit]) -> list[list[Edit]]:
    """Splits a group into changes. The edits of one call are one change. Every statement is a change of its own."""
    return [group] if group[0].kind in _OF_CALL else [[edit] for edit in group]


def _where(site: Site | None) -> str:
    return f"{Path(site.file).name}:{site.line}" if site is not None else ""
