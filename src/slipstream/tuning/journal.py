"""The journal of a tuning: a file to which decisions are appended, so that an interrupted tuning can be resumed. A
journal of another script, with other options, of another machine, or older than a day is ignored."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec

from slipstream.recipe.script_digest import files_digest, script_digest
from slipstream.records import Recipe, Session, Verdict
from slipstream.store.decoding import DamagedFileError, one_error
from slipstream.store.safe_files import append_file, open_directory, read_file, write_file
from slipstream.tuning.options import TuneOptions

MAX_AGE = timedelta(days=1)
_LIMIT_BYTES = 64 << 20  # a verdict takes a few kilobytes


class Header(msgspec.Struct, frozen=True, tag="tuning"):
    """The first line. A journal is used only if all `facts` are equal."""

    facts: dict[str, str]
    created: str


class Decided(msgspec.Struct, frozen=True, tag="verdict"):
    verdict: Verdict


class FinishedRecipe(msgspec.Struct, frozen=True, tag="recipe"):
    """The recipe is complete. Only the final race is left."""

    recipe: Recipe
    revised: list[Verdict] = []  # all verdicts at that time


class Journal:
    """Reads and writes the journal. Without a path it stores nothing."""

    def __init__(self, path: str, facts: dict[str, str]) -> None:
        self._path = Path(path) if path else None
        self.verdicts: list[Verdict] = []
        self.finished: FinishedRecipe | None = None
        self.fault = ""  # why no journal could be kept
        self._open(facts)

    @property
    def is_kept(self) -> bool:
        return self._path is not None

    def remember(self, verdict: Verdict) -> None:
        self._append(Decided(verdict))

    def finish(self, recipe: Recipe, verdicts: list[Verdict]) -> None:
        self._append(FinishedRecipe(recipe, list(verdicts)))

    def delete(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _open(self, facts: dict[str, str]) -> None:
        if self._path is None:
            return
        try:
            for folder in (self._path.parent.parent, self._path.parent):  # .slipstream and its journals
                open_directory(folder)
        except OSError as error:
            self._give_up(error)
            return
        entries = _read(self._path)
        if entries and isinstance(entries[0], Header) and _is_current(entries[0], facts):
            for entry in entries[1:]:
                if isinstance(entry, FinishedRecipe):
                    self.finished, self.verdicts = entry, list(entry.revised)
                elif isinstance(entry, Decided):
                    self.verdicts.append(entry.verdict)
            return
        try:
            write_file(self._path, b"")
        except OSError as error:
            self._give_up(error)
        self._append(Header(facts, datetime.now(timezone.utc).isoformat()))

    def _append(self, entry: Header | Decided | FinishedRecipe) -> None:
        if self._path is None:
            return
        try:
            append_file(self._path, msgspec.json.encode(entry) + b"\n")
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Continues without a journal: a full disk must not end a tuning. The user is told that it cannot be
        resumed."""
        self._path = None
        why = f"{error.filename}: {error.strerror}"
        self.fault = f"No journal could be kept ({why}): if this tuning is interrupted, it cannot be resumed."


def _read(path: Path) -> list[Header | Decided | FinishedRecipe]:
    """Reads up to the first incomplete line, which is the last one if the machine stopped while writing it."""
    entries: list[Header | Decided | FinishedRecipe] = []
    try:
        lines = read_file(path, _LIMIT_BYTES).splitlines()
    except OSError:
        return entries
    for line in lines:
        try:
            with one_error():
                entries.append(msgspec.json.decode(line, type=Header | Decided | FinishedRecipe))
        except DamagedFileError:
            break
    return entries


def _is_current(header: Header, facts: dict[str, str]) -> bool:
    try:
        age = datetime.now(timezone.utc) - datetime.fromisoformat(header.created)
    except (ValueError, TypeError):
        return False
    return header.facts == facts and timedelta(0) <= age < MAX_AGE


def facts_of(session: Session, order: TuneOptions) -> dict[str, str]:
    """The facts that must be unchanged for the journal to be used."""
    environment = session.environment
    facts = {
        "script": " ".join(session.script),
        "digest": script_digest(session.script, session.cwd),
        "files": files_digest(session),
        "cwd": session.cwd,
        "machine": f"{environment.cpu}, {environment.num_usable:g} cores, {[gpu.name for gpu in environment.gpus]}",
        "python": environment.python,
        "slipstream": environment.slipstream,
        "torch": environment.torch.version if environment.torch else "",
        "order": f"{sorted(order.only)} {sorted(order.without)} {order.allow} {order.margin} {order.alpha}",
    }
    return facts | {f"library {name}": version for name, version in sorted(environment.libraries.items())}
