"""Observes the script's own command line: argparse (also under the Hugging Face parser) and click (also under Typer).
Options and their values are read after the script's parser has returned them. Nothing is changed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from types import ModuleType
from typing import Any

from slipstream.records import Flag
from slipstream.seams.patching import Patches

_PLAIN = (bool, int, float, str, type(None))
Tell = Callable[[list[Flag]], None]


class CommandLineSeam:
    """`tell` is called with the options of each parser that was used."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def install(self, patches: Patches) -> None:
        patches.around(argparse.ArgumentParser, "parse_known_args", "flags.argparse", None, self._after_argparse)

    def install_click(self, patches: Patches, core: ModuleType) -> None:
        owner = next(kind for kind in core.Command.__mro__ if "make_context" in vars(kind))
        patches.around(owner, "make_context", "flags.click", None, self._after_click)

    def _after_argparse(self, token: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._tell(list(_of_argparse(args[0], vars(result[0]))))

    def _after_click(self, token: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._tell(list(_of_click(args[0].params, result.params)))


def _of_argparse(parser: argparse.ArgumentParser, values: dict[str, Any]) -> Iterator[Flag]:
    for action in parser._actions:
        value = _plain(values.get(action.dest))
        if not action.option_strings or type(value) not in _PLAIN:
            continue
        yield Flag(
            name=action.dest,
            option=_longest(action.option_strings),
            value=str(value),
            # The switches of the Hugging Face parser take an optional value, so nargs is "?".
            is_switch=isinstance(action, argparse.BooleanOptionalAction)
            or (action.nargs in (0, "?") and action.const is True),
            choices=_texts(action.choices),
        )


def _of_click(parameters: Iterable[Any], values: dict[str, Any]) -> Iterator[Flag]:
    for parameter in parameters:
        value, options = _plain(values.get(parameter.name)), [one for one in parameter.opts if one.startswith("-")]
        if options and type(value) in _PLAIN:
            is_switch = bool(getattr(parameter, "is_flag", False)) and isinstance(value, bool)
            choices = _texts(getattr(parameter.type, "choices", None))
            yield Flag(parameter.name, _longest(options), str(value), is_switch, choices)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _longest(options: Iterable[str]) -> str:
    """Returns the first long form, or the first short form if there is no long one. In a pair such as --amp and
    --no-amp, the first one switches the setting on."""
    options = list(options)
    return next((one for one in options if one.startswith("--")), options[0])


def _texts(choices: Any) -> list[str]:
    try:
        return [str(_plain(one)) for one in choices or ()]
    except TypeError:
        return []
