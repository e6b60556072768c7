"""Reads and writes slipstream.toml: a recipe that users read and edit, and facts about its measurement.

Settings and types are checked when the file is read. An error names the line, if the line is found. This module imports
nothing slow, because `slipstream run` reads the recipe before it starts the script.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from slipstream.recipe.conflicts import find_conflicts
from slipstream.recipe.staleness import differences
from slipstream.recipe.text import TomlLines
from slipstream.records import Choice, Recipe, Session, Setting, Speed, Tuning
from slipstream.store.safe_files import read_file, write_file
from slipstream.techniques._core.catalogue import Technique, catalogue

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["NAME", "RecipeFile", "differences", "read_recipe", "write_recipe"]

FORMAT = 1
NAME = "slipstream.toml"
_LIMIT_BYTES = 1 << 20  # a recipe with every technique takes a few kilobytes
_TABLES = ("recipe", "script", "machine", "evidence")


class RecipeFile(msgspec.Struct, frozen=True):
    recipe: Recipe
    script: list[str] = []  # the script and its arguments, as typed
    script_digest: str = ""
    machine: dict[str, str | float] = {}
    base_step_ms: float | None = None
    total: Speed | None = None
    path: str = ""


def write_recipe(path: Path, tuning: Tuning, session: Session) -> None:
    """Writes the recipe of the tuning. The file is replaced as a whole, or not at all."""
    from slipstream.recipe.text import recipe_text  # reading a recipe does not need this function

    write_file(path, recipe_text(tuning, session, FORMAT).encode())


def read_recipe(path: Path, techniques: Mapping[str, Technique] | None = None) -> RecipeFile:
    """Reads and checks a recipe. Raises ValueError with the file, and with the line of a wrong entry."""
    try:
        text = read_file(path, _LIMIT_BYTES, may_be_link=True).decode()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8") from None
    try:
        data = tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or a number with more digits than Python reads
        raise ValueError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} cannot be read: it is nested too deeply") from None
    try:
        return _Reading(path, TomlLines(text), data, techniques or catalogue()).result()
    except RecursionError:  # raised when an error shows a deeply nested value
        raise ValueError(f"{path} cannot be read: it is nested too deeply") from None


class _Reading:
    """Reads one file, up to the first error."""

    def __init__(self, path: Path, lines: TomlLines, data: dict[str, Any], techniques: Mapping[str, Technique]) -> None:
        self._path, self._lines, self._data, self._techniques = path, lines, data, techniques

    def result(self) -> RecipeFile:
        self._check_version()
        for name, value in self._data.items():
            if name == "version":
                continue
            if name not in _TABLES:
                raise self._fault("", name, f"{name!r} is not known here; allowed: version, {', '.join(_TABLES)}")
            if not isinstance(value, dict):
                raise self._fault("", name, f"{name!r} must be a table, [{name}]")
        return RecipeFile(
            recipe=self._recipe(),
            script=self._strings("script", "command"),
            script_digest=self._string("script", "sha256"),
            machine=self._machine(),
            base_step_ms=self._number("evidence", "base_step_ms"),
            total=self._total(),
            path=str(self._path),
        )

    def _recipe(self) -> Recipe:
        chosen = [self._choice(name, value) for name, value in self._data.get("recipe", {}).items()]
        choices = tuple(choice for choice in chosen if choice is not None)
        cards = {choice.technique: self._techniques[choice.technique].CARD for choice in choices}
        for conflict in find_conflicts(cards):
            raise self._fault("recipe", conflict.right, f"{conflict}: a recipe can hold only one of them")
        return Recipe(choices)

    def _check_version(self) -> None:
        version = self._data.get("version")
        if version != FORMAT or isinstance(version, bool):
            got = "is missing" if version is None else f"is {_shown(version)}"
            raise self._fault("", "version", f"version {got}; this version of slipstream reads: {FORMAT}")

    def _choice(self, name: str, value: object) -> Choice | None:
        """Returns the choice in one line of the recipe, or None if the user switched the technique off with false."""
        if name not in self._techniques or name == "nothing":
            names = ", ".join(ident for ident in self._techniques if ident != "nothing")
            raise self._fault("recipe", name, f"there is no technique {name!r}; the techniques are: {names}")
        allowed = _allowed_settings(self._techniques[name])
        if value is False:
            return None
        # The types are compared too, because True equals 1 in Python, and `workers = true` is not one worker.
        if not any(value == setting and isinstance(value, bool) == isinstance(setting, bool) for setting in allowed):
            said = f"{name} = {_shown(value)}"
            raise self._fault("recipe", name, f"{said} is not possible; allowed: {_listed(allowed)}, or false")
        assert isinstance(value, bool | int | str)
        return Choice(name, value)

    def _strings(self, table: str, key: str) -> list[str]:
        value = self._data.get(table, {}).get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self._fault(table, key, f"{key} must be a list of strings")
        return value

    def _string(self, table: str, key: str) -> str:
        value = self._data.get(table, {}).get(key, "")
        if not isinstance(value, str):
            raise self._fault(table, key, f"{key} must be a string, not {_shown(value)}")
        return value

    def _number(self, table: str, key: str) -> float | None:
        value = self._data.get(table, {}).get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise self._fault(table, key, f"{key} must be a number, not {_shown(value)}")
        try:
            return None if value is None else float(value)
        except OverflowError:
            raise self._fault(table, key, f"{key} is too large") from None

    def _machine(self) -> dict[str, str | float]:
        machine: dict[str, str | float] = {}
        for key, value in self._data.get("machine", {}).items():
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise self._fault("machine", key, f"{key} must be a string or a number, not {_shown(value)}")
            machine[key] = value
        return machine

    def _total(self) -> Speed | None:
        ratio, low, high = (self._number("evidence", key) for key in ("ratio", "low", "high"))
        return Speed(ratio, low, high) if ratio is not None and low is not None and high is not None else None

    def _fault(self, table: str, key: str, what: str) -> ValueError:
        line = self._lines.line_of(table, key)
        return ValueError(f"{self._path}, line {line}: {what}" if line else f"{self._path}: {what}")


def _allowed_settings(technique: Technique) -> Sequence[Setting]:
    """Returns the settings of a technique. A technique without VALUES can only be on."""
    values: Sequence[Setting] = getattr(technique, "VALUES", (True,))
    return values


def _listed(allowed: Sequence[Setting]) -> str:
    if isinstance(allowed, range):
        return f"{allowed[0]} to {allowed[-1]}"
    return ", ".join(_shown(setting) for setting in allowed)


def _shown(value: object) -> str:
    """Returns the value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
