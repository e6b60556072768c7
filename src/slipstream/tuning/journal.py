"""The journal of a tuning: a file to which results are appended, so that `--resume` can continue the tuning. A journal
that is older than a week is ignored. So is a journal of another script, of other options, of other versions of the
libraries or of another machine."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec

from slipstream.recipe.script_digest import files_digest, script_digest
from slipstream.records import Recipe, Session, Verdict
from slipstream.store.decoding import DamagedFileError, one_error
from slipstream.store.safe_files import append_file, open_directory, read_file, write_file
from slipstream.tuning.options import TuneOptions

MAX_AGE = timedelta(days=7)
_LIMIT_BYTES = 64 << 20  # a verdict takes a few kilobytes


class Header(msgspec.Struct, frozen=True, tag="tuning"):
    """The first line. A journal is used only if all `facts` are equal."""

    facts: dict[str, str]
    created: str


class Selected(msgspec.Struct, frozen=True, tag="selected"):
    """The state after a pass."""

    recipe: Recipe
    gain: float  # the estimated log ratio of the recipe against the base
    verdicts: list[Verdict] = []
    is_last: bool = False  # only the proof is left
    writable: Recipe = Recipe()  # the best recipe that can be written into the source, if `recipe` cannot
    writable_gain: float = 0.0


class Paired(msgspec.Struct, frozen=True, tag="pair"):
    """One pair of the proof of a recipe."""

    recipe: Recipe
    log_ratio: float


class ProofBegun(msgspec.Struct, frozen=True, tag="proof"):
    recipe: Recipe


Entry = Header | Selected | ProofBegun | Paired


class Journal:
    """Reads and writes the journal. Without a path it stores nothing."""

    def __init__(self, path: str, facts: dict[str, str], is_resumed: bool = False) -> None:
        self._path = Path(path) if path else None
        self.selected: Selected | None = None
        self.fault = ""  # why no journal could be kept
        self._proofs: list[Recipe] = []
        self._pairs: list[Paired] = []
        self._open(facts, is_resumed)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of an earlier tuning can be used."""
        return self.selected is None and not self._proofs

    @property
    def is_kept(self) -> bool:
        return self._path is not None

    def remember_pass(self, selected: Selected) -> None:
        self._append(selected)

    def begin_proof(self, recipe: Recipe) -> tuple[int, list[float]]:
        """Returns the number of this proof in the tuning, which starts at 1, and the log ratios of its known pairs. A
        new proof is written to the journal."""
        if recipe not in self._proofs:
            self._proofs.append(recipe)
            self._append(ProofBegun(recipe))
        known = [one.log_ratio for one in self._pairs if one.recipe == recipe]
        return self._proofs.index(recipe) + 1, known

    def remember_pair(self, recipe: Recipe, log_ratio: float) -> None:
        self._append(Paired(recipe, log_ratio))

    def delete(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _open(self, facts: dict[str, str], is_resumed: bool) -> None:
        if self._path is None:
            return
        try:
            for folder in (self._path.parent.parent, self._path.parent):  # .slipstream and its journals
                open_directory(folder)
        except OSError as error:
            self._give_up(error)
            return
        entries = _read(self._path) if is_resumed else []
        if entries and isinstance(entries[0], Header) and _is_current(entries[0], facts):
            self._take(entries[1:])
        else:
            entries = [Header(facts, datetime.now(timezone.utc).isoformat())]
        try:  # rewrites the file without its unreadable end, because reading stops there and new lines come after it
            write_file(self._path, b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries))
        except OSError as error:
            self._give_up(error)

    def _take(self, entries: list[Entry]) -> None:
        for entry in entries:
            if isinstance(entry, Selected):
                self.selected = entry
            elif isinstance(entry, ProofBegun):
                self._proofs.append(entry.recipe)
            elif isinstance(entry, Paired):
                self._pairs.append(entry)

    def _append(self, entry: Entry) -> None:
        if self._path is None:
            return
        try:
            append_file(self._path, msgspec.json.encode(entry) + b"\n")
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Continues without a journal, because a full disk must not end a tuning. `fault` tells the user that the
        tuning cannot be resumed."""
        self._path = None
        why = f"{error.filename}: {error.strerror}"
        self.fault = f"No journal could be kept ({why}): this tuning cannot be resumed."


def _read(path: Path) -> list[Entry]:
    """Reads up to the first unreadable line. The last line is incomplete if the machine stopped while it was
    written."""
    entries: list[Entry] = []
    try:
        lines = read_file(path, _LIMIT_BYTES).splitlines()
    except OSError:
        return entries
    for line in lines:
        try:
            with one_error():
                entries.append(msgspec.json.decode(line, type=Entry))
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
    """Returns the facts that must be unchanged if the journal is to be used."""
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
        "order": str(msgspec.structs.replace(order, budget_s=None, journal="", is_resumed=False)),
    }
    return facts | {f"library {name}": version for name, version in sorted(environment.libraries.items())}
