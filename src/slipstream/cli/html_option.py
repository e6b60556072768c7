"""`--html [FILE]` and `--no-open`. The file may be left out: what follows is then the script or the session, and must
never be taken for a file to write over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

OPTION: Final = "--html"
BESIDE: Final = "beside the session"  # stands for the file where none was named
_ENDINGS: Final = (".html", ".htm")
_TYPED: Final = "slipstream.typed"


class HtmlCommand(click.Command):
    """Takes what follows `--html` for its file only if it ends like one. Remembers what was typed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_TYPED] = list(args)
        return super().parse_args(ctx, self._joined(ctx, list(args)))

    def _joined(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`--html page.html` as one word, a bare `--html` with the default in it. From a script's name on, words are
        the script's own."""
        done: list[str] = []
        while args and args[0] != "--" and (args[0].startswith("-") or ctx.allow_interspersed_args):
            word = args.pop(0)
            if word == OPTION:
                done.append(f"{OPTION}={args.pop(0) if args and _is_page(args[0]) else BESIDE}")
            elif self._wants_value(word) and args:
                done += [word, args.pop(0)]
            else:
                done.append(word)
        return done + args

    def _wants_value(self, word: str) -> bool:
        options = (param for param in self.params if isinstance(param, click.Option))
        return any(word in option.opts and not option.is_flag and not option.count for option in options)


def html_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives `html` (None, BESIDE, "-" or a name) and `no_open`; the command must be an HtmlCommand."""
    function = click.option("--no-open", is_flag=True, help="Do not open the HTML report.")(function)
    return click.option(
        OPTION,
        callback=_read_page,
        metavar="[FILE]",
        help="Write a report to look at, and open it on a desktop; beside the session unless FILE is given.",
    )(function)


def typed_options() -> list[str]:
    """The words before the script, as the user typed them, without `-m`: that belongs to the script."""
    context = click.get_current_context()
    typed: list[str] = context.meta.get(_TYPED, [])
    script = context.params.get("script") or ()
    return [word for word in typed[: len(typed) - len(script)] if word != "-m"]


def _read_page(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and value != BESIDE and not _is_page(value):
        raise click.BadParameter(f"the file must end in .html, and this is {value!r}.")
    return value


def _is_page(word: str) -> bool:
    return word == "-" or word.lower().endswith(_ENDINGS)
