"""Makes a session that may be attached to an issue: without folders, arguments, host and user names, and source lines.
Fields for paths and source lines are replaced. All other texts, such as notes, are searched for source lines and
arguments of the session, names of host and user, and anything that looks like a path, an address or an e-mail."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any, Final

import msgspec

from slipstream.records import Session, Site

REMOVED: Final = "folders, arguments of the script, source lines, error messages, and names of the host and the user"
REMAINING: Final = (
    "names of files, modules, functions, classes, variables and options; versions, the processor and the git commit;"
    " times, shapes, sizes and losses"
)
_PROJECT: Final = "/project"
_LINE: Final = "(source line)"
_ARGUMENT: Final = "(argument)"
_ELSEWHERE: Final = "/..."
_PATH_FIELDS: Final = ("file", "cwd", "path", "folder")
_CODE_FIELDS: Final = ("change", "expression", "guard")  # of findings, stack samples and statements
_LEAST_WORD: Final = 4  # characters of an argument that is searched for in other texts
_PATH: Final = re.compile(r"(?<![\w./~-])(?:~|\.\.|\.)?/[^\s'\"<>:,;()\[\]{}]+")
_RELATIVE_PATH: Final = re.compile(r"(?<![\w/.])(?:[\w.-]+/)+(?=[\w.-]+\.\w+)")
_ADDRESS: Final = re.compile(r"\b\w+://[^\s'\"<>]+|\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+|\b\d{1,3}(?:\.\d{1,3}){3}\b")


def redact_session(session: Session) -> Session:
    redactor = Redactor(session.cwd, _source_lines(session), _arguments(session))
    redacted: Session = redactor.value(session)
    return msgspec.structs.replace(
        redacted,
        script=_without_arguments(session.script),
        flags=[msgspec.structs.replace(flag, value="", choices=[]) for flag in session.flags],
        ending=msgspec.structs.replace(session.ending, message=session.ending.message.partition(":")[0][:80]),
        options=[word if word.startswith("-") else redactor.text(word) for word in session.options],
    )


class Redactor:
    def __init__(self, cwd: str = "", source_lines: Iterable[str] = (), arguments: Iterable[str] = ()) -> None:
        self._cwd = cwd
        words: dict[str, str] = {}
        for text, replacement in (
            *((line, _LINE) for line in source_lines),
            *((word, _ARGUMENT) for word in arguments),
            *_names(),
        ):
            if len(text) >= _LEAST_WORD or replacement not in (_ARGUMENT, _LINE):
                words.setdefault(text, replacement)
        longest_first = sorted(filter(None, words), key=len, reverse=True)
        pattern = "|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in longest_first)
        self._words, self._pattern = words, re.compile(pattern or r"(?!)")

    def value(self, value: Any, field: str = "") -> Any:
        """Returns a value of the session without its private parts."""
        if isinstance(value, msgspec.Struct):
            if isinstance(value, Site):
                value = msgspec.structs.replace(value, text="")
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            redacted = {name: self.value(part, name) for name, part in fields.items()}
            changed = {name: part for name, part in redacted.items() if part is not fields[name]}
            return msgspec.structs.replace(value, **changed) if changed else value
        if isinstance(value, dict):
            return {self.value(key): self.value(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.value(part, field) for part in value)
        if not isinstance(value, str) or not value:
            return value
        if field in _CODE_FIELDS:
            return _LINE
        return self.path(value) if field in _PATH_FIELDS and os.path.isabs(value) else self.text(value)

    def path(self, path: str) -> str:
        """Returns the name of the file, below a folder that says whether the file is in the project, in a library or
        elsewhere. For a library, the path below site-packages stays."""
        if path == self._cwd:
            return _PROJECT
        for folder in ("site-packages", "dist-packages"):
            if f"/{folder}/" in path:
                return f"{_ELSEWHERE}/{folder}/{path.rpartition(f'/{folder}/')[2]}"
        is_inside = self._cwd and path.startswith(self._cwd.rstrip("/") + "/")
        return f"{_PROJECT if is_inside else _ELSEWHERE}/{PurePath(path).name}"

    def text(self, text: str) -> str:
        if os.path.isabs(text) and "\n" not in text:
            text = self.path(text)
        text = self._pattern.sub(lambda found: self._words[found[0]], text)
        text = _ADDRESS.sub("(address)", text)
        text = _PATH.sub(lambda found: _shortened(self.path(found[0])), text)
        return text if text.startswith(_ELSEWHERE) else _RELATIVE_PATH.sub("", text)


def _shortened(path: str) -> str:
    return path.removeprefix(_PROJECT + "/")


def _names() -> Iterator[tuple[str, str]]:
    yield os.path.expanduser("~").rstrip("/"), "~"
    for read, replacement in ((socket.gethostname, "(host)"), (getpass.getuser, "(user)")):
        with contextlib.suppress(KeyError, OSError):  # a container may have no user name
            name = read()
            if name not in ("root", "localhost"):
                yield name, replacement


def _source_lines(session: Session) -> Iterator[str]:
    yield from (site.text for site in session.sites)
    yield from (finding.site.text for finding in session.findings if finding.site is not None)
    yield from (stack.expression for stack in session.stacks)


def _arguments(session: Session) -> Iterator[str]:
    for word in session.script[2 if session.script[:1] == ["-m"] else 1 :]:
        value = word.partition("=")[2] if word.startswith("-") else word
        if not value.replace(".", "").replace("-", "").isdigit():
            yield value


def _without_arguments(script: list[str]) -> list[str]:
    if script[:1] == ["-m"]:
        return [*script[:2], *([_ARGUMENT] if len(script) > 2 else [])]
    return [*(PurePath(name).name for name in script[:1]), *([_ARGUMENT] if len(script) > 1 else [])]
