"""Formats parts of a finding: its title, the line of code that its change suggests, and its sentences."""

from __future__ import annotations

import re
from pathlib import PurePath

from slipstream.records import Loader, Session, Site, Statement


def taking(work: str, share: float) -> str:
    """The title for one kind of work on a batch. The title says "most" only if `share` is more than a half."""
    return f"{work} takes {'most' if share > 0.5 else 'a good part'} of the input"


def joined(*sentences: str) -> str:
    """The non-empty sentences, joined by spaces."""
    return " ".join(sentence for sentence in sentences if sentence)


def each_weight_turned(model: str) -> str:
    """The change for models that cannot be converted as a whole by `to(memory_format=...)`."""
    return (
        f"for w in {model}.parameters(): w.data = w.to(memory_format=torch.channels_last) if w.dim() == 4 else w.data"
    )


def place(site: Site | None) -> str:
    return f"{PurePath(site.file).name}:{site.line}" if site else ""


def statement_on(session: Session, site: Site | None) -> Statement | None:
    """The statement that the session records for this line; None if there is none."""
    if site is None:
        return None
    return next((one for one in session.statements if (one.file, one.line) == (site.file, site.line)), None)


def more_rarely(
    session: Session, site: Site | None, iterations: int, sketch: str, *, does_nothing_else: bool = True
) -> str:
    """The line under a condition that holds once in `iterations` iterations.

    Returns a suggestion that starts with "by hand" if the line may not be skipped, if no loop counter is known, or if
    the line is under a condition already. `sketch` replaces the line if the line is not known. `does_nothing_else` says
    that the called function is known to do nothing that must happen in every iteration.
    """
    text, statement = site.text if site and site.text else sketch, statement_on(session, site)
    is_safe = statement is not None and statement.is_skippable and does_nothing_else
    if is_safe and statement is not None and statement.counter and not statement.guard:
        return f"if {statement.counter} % {iterations} == 0: {text}"
    if statement is not None and statement.guard:
        return f"by hand, in place of `if {statement.guard}`: {text}"
    return f"by hand: {text}"


def warning_of(session: Session, site: Site | None) -> str:
    """A sentence about names that the line assigns and the rest of the script uses; "" if none are known."""
    statement = statement_on(session, site)
    if statement is None or not statement.needed:
        return ""
    return f"The rest of the script uses {' and '.join(statement.needed)}: move or keep what needs it."


def with_argument(site: Site | None, call: str, name: str, value: str) -> str:
    """The user's own line with the argument inserted, or with the argument's value replaced.

    Returns a sketch if the line contains neither the argument nor the whole call.
    """
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


def with_loader_argument(session: Session, loader: Loader, name: str, value: str) -> str:
    """The line that builds the loader, with the argument inserted.

    If the Hugging Face Trainer builds the loader, returns the Trainer's own argument.
    """
    if loader.framework == "transformers":
        return unless_replaced(session, f"TrainingArguments(..., dataloader_{name}={value})", "get_train_dataloader")
    text = loader.site.text if loader.site else "DataLoader("
    if "super().__init__(" in text:  # The loader is of a user's class, which may have other arguments.
        return with_argument(loader.site, "__init__", name, value)
    call = "DataLoader" if re.search(r"\bDataLoader\(", text) else loader.class_name
    return with_argument(loader.site, call, name, value)


def trainers_own(
    session: Session, site: Site | None, lightning: str, transformers: str, *methods: str, keras: str = ""
) -> str:
    """The argument of the trainer that makes the change; "" if the training loop is the user's.

    With a trainer the observed line starts the whole training, so the line cannot be edited to make the change.
    `methods` are the methods of the Hugging Face Trainer that read the argument.
    """
    text, libraries = site.text if site is not None else "", session.environment.libraries
    if ".fit(" in text and {"lightning", "pytorch_lightning"} & set(libraries):
        return lightning
    if ".fit(" in text and "keras" in libraries:
        return keras
    if ".train(" in text and "transformers" in libraries:
        return unless_replaced(session, transformers, *methods)
    return ""


def unless_replaced(session: Session, change: str, *methods: str) -> str:
    """The change; a suggestion if the user's Trainer overrides one of the methods that read the argument."""
    trainer = session.trainer
    replaced = [name for name in methods if trainer is not None and name in trainer.own_methods]
    if trainer is None or not replaced:
        return change
    return f"by hand: {trainer.class_name}.{replaced[0]} decides this; if it follows the Trainer's own, {change}"


def _end_of_value(text: str, start: int) -> int:
    """The end of an argument's value: the next comma or closing bracket that is not part of the value."""
    depth = 0
    for at in range(start, len(text)):
        if depth == 0 and text[at] in ",)]}":
            return at
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[at], 0)
    return len(text)


def _closing(text: str, start: int) -> int:
    """The position of the parenthesis that closes the one just before `start`; -1 if the text does not contain it."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return -1
