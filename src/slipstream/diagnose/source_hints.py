"""Formats lines of code for the reader of a finding, and joins its sentences."""

from __future__ import annotations

import re
from pathlib import PurePath

from slipstream.records import Loader, Session, Site


def taking(work: str, share: float) -> str:
    """The title for one kind of work on a batch. It says "most" only for more than half."""
    return f"{work} takes {'most' if share > 0.5 else 'a good part'} of the input"


def joined(*sentences: str) -> str:
    """The non-empty parts, joined."""
    return " ".join(sentence for sentence in sentences if sentence)


def each_weight_turned(model: str) -> str:
    """The change for models that `to(memory_format=...)` does not convert as a whole."""
    return (
        f"for w in {model}.parameters(): w.data = w.to(memory_format=torch.channels_last) if w.dim() == 4 else w.data"
    )


def place(site: Site | None) -> str:
    return f"{PurePath(site.file).name}:{site.line}" if site else ""


def with_argument(site: Site | None, call: str, name: str, value: str) -> str:
    """The user's own line with the argument inserted; a sketch of the call if the line does not contain all of it."""
    text = site.text if site else ""
    given = re.search(rf"\b{name}\s*=\s*", text)
    if given:
        return text[: given.end()] + value + text[_end_of_value(text, given.end()) :]
    opened = re.search(rf"\b{call}\s*\(", text)
    closing = _closing(text, opened.end()) if opened else -1
    if closing < 0:
        return f"{call}(..., {name}={value})"
    assert opened is not None
    inside = text[opened.end() : closing].rstrip().rstrip(",")
    return text[: opened.end()] + (f"{inside}, " if inside else "") + f"{name}={value}" + text[closing:]


def with_loader_argument(loader: Loader, name: str, value: str) -> str:
    """The same, with the framework's own name for the setting if a framework builds the loader."""
    if loader.framework == "transformers":
        return f"TrainingArguments(..., dataloader_{name}={value})"
    text = loader.site.text if loader.site else "DataLoader("
    if "super().__init__(" in text:  # a class of the user's, whose own arguments may be others
        return with_argument(loader.site, "__init__", name, value)
    call = "DataLoader" if re.search(r"\bDataLoader\(", text) else loader.class_name
    return with_argument(loader.site, call, name, value)


def trainers_own(session: Session, site: Site | None, lightning: str, transformers: str) -> str:
    """The trainer's own argument, if a trainer does this by itself; "" if the loop is the user's.

    With a trainer the observed line starts the whole training, so it cannot be edited to make the change.
    """
    text, libraries = site.text if site is not None else "", session.environment.libraries
    if ".fit(" in text and {"lightning", "pytorch_lightning"} & set(libraries):
        return lightning
    return transformers if ".train(" in text and "transformers" in libraries else ""


def _end_of_value(text: str, start: int) -> int:
    """The end of an argument's value: the next comma or closing bracket that is not part of the value."""
    depth = 0
    for at in range(start, len(text)):
        if depth == 0 and text[at] in ",)]}":
            return at
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[at], 0)
    return len(text)


def _closing(text: str, start: int) -> int:
    """The position at which the parenthesis opened just before `start` closes; -1 if that is not on this line."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return -1
