"""Finds the session that the user named by a file, a name or its beginning, `latest`, `previous`, or a git commit."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from slipstream.machine.git import resolve_commit
from slipstream.records import IndexEntry
from slipstream.store.index import SUFFIX, entries
from slipstream.store.sessions import FOLDER, StorageError

WORDS = ("latest", "previous")
_HASH = re.compile(r"[0-9a-f]{4,40}")


def find_session(name: str, root: Path | None = None, *, is_timed: bool = False, script: Sequence[str] = ()) -> Path:
    """Returns the path of the session. Raises StorageError with a sentence for the user if no session or more than one
    has this name. With `is_timed`, `latest`, `previous` and commits refer to sessions with steps, if there are any.
    With `script`, `latest` and `previous` refer to sessions of this script, if there are any."""
    if name not in WORDS and Path(name).is_file():
        return Path(name)
    root = root or Path.cwd()
    if name.endswith(SUFFIX):  # the name of a saved session, or of a missing file, which is reported when it is read
        saved = root / FOLDER / "sessions" / name
        return saved if saved.is_file() else Path(name)
    listed = entries(root / FOLDER)
    known = [entry for entry in listed if entry.is_readable]
    if listed and not known:
        raise StorageError(
            f"This version cannot read any file in {root / FOLDER / 'sessions'}, for example"
            f" {listed[0].name + SUFFIX!r}. Make a session: slipstream check train.py"
        )
    if not known:
        raise StorageError(f"No session is saved in {root / FOLDER}. Make one: slipstream check train.py")
    timed = ([entry for entry in known if entry.step_ms is not None] if is_timed else []) or known
    entry: IndexEntry | None
    if name in WORDS:
        own = [entry for entry in timed if script and _script_of(entry) == _name_of(script)]
        entry = _by_word(name, own or timed)
    else:
        entry = _by_name(name, known) or _by_commit(name, known, root, is_timed)
    if entry is None:
        raise StorageError(
            f"There is no session {name!r}. Give a file, the name of a session that `slipstream history` lists, or a"
            " commit at which a session was measured."
        )
    return root / FOLDER / "sessions" / f"{entry.name}{SUFFIX}"


def _by_word(word: str, known: Sequence[IndexEntry]) -> IndexEntry:
    if word == "latest":
        return known[0]
    others = [entry for entry in known[1:] if _script_of(entry) == _script_of(known[0])]
    if not others:
        raise StorageError(f"There is no session of {_script_of(known[0])} before the latest one, {known[0].name}.")
    return others[0]


def _script_of(entry: IndexEntry) -> str:
    """Returns the script of a session, without its arguments."""
    return _name_of(shlex.split(entry.script))


def _name_of(words: Sequence[str]) -> str:
    return " ".join(words[:2] if words[:1] == ["-m"] else words[:1])


def _by_name(name: str, known: Sequence[IndexEntry]) -> IndexEntry | None:
    exact = [entry for entry in known if entry.name == name]
    if exact:
        return exact[0]
    if len(name) < 4 or (_HASH.fullmatch(name) and not name.startswith("20")):
        return None
    alike = [entry for entry in known if entry.name.startswith(name)]
    if len(alike) > 1:
        listed = ", ".join(entry.name for entry in alike[:3])
        raise StorageError(
            f"{len(alike)} sessions begin with {name!r}: {listed}{', ...' if len(alike) > 3 else ''}."
            " Give more letters of the name."
        )
    return alike[0] if alike else None


def _by_commit(name: str, known: Sequence[IndexEntry], root: Path, is_timed: bool) -> IndexEntry | None:
    """Returns the newest session at that commit. A session whose files were unchanged since the commit is preferred."""
    commit = resolve_commit(name, root)
    if not commit and _HASH.fullmatch(name):  # the sessions may come from another repository
        commits = {entry.commit for entry in known if entry.commit.startswith(name)}
        commit = commits.pop() if len(commits) == 1 else ""
    found = [entry for entry in known if commit and entry.commit == commit]
    if commit and not found:
        raise StorageError(
            f"No session was measured at {commit[:9]}."
            " Check out that commit and measure it with: slipstream check train.py"
        )
    return min(found, key=lambda entry: (is_timed and entry.step_ms is None, entry.is_changed), default=None)
