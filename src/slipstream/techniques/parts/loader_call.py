"""The call that built a loader: how a technique names it in a sentence, and one of its arguments as an edit."""

from __future__ import annotations

import os

import msgspec

from slipstream.records import Edit, Loader, Site
from slipstream.techniques.observation import Observation


def where(site: Site | None) -> str:
    """ "at train.py:31"; a loader that no line of the user's built has no place."""
    return f"at {os.path.basename(site.file)}:{site.line}" if site is not None else "in a framework"


def argument_edits(
    observation: Observation, technique: str, arguments: dict[str, str], if_given: tuple[str, ...] = ()
) -> list[Edit]:
    """One edit for each argument of the training loader's call; those in `if_given` only where the call has them."""
    loader = observation.loader
    edits = [_argument_edit(loader, technique, argument, text) for argument, text in arguments.items()]
    return [msgspec.structs.replace(edit, is_if_given=edit.argument.endswith(if_given or "?")) for edit in edits]


def _argument_edit(loader: Loader | None, technique: str, argument: str, text: str) -> Edit:
    observed = repr(getattr(loader, argument, ""))
    if loader is None or loader.site is None:
        reason = f"pass {argument}={text} to the DataLoader; its line was not seen"
        return Edit(technique=technique, kind="by_hand", site=None, argument=argument, text=text, reason=reason)
    call = _callee(loader)
    if call == "TrainingArguments":
        argument = f"dataloader_{argument}"
    return Edit(technique, "argument", loader.site, call, argument, text, observed=observed if observed != "''" else "")


def _callee(loader: Loader) -> str:
    if loader.framework == "transformers":
        return "TrainingArguments"  # the Trainer builds the loader as it is told there
    assert loader.site is not None
    return loader.class_name if loader.class_name in loader.site.text else "DataLoader"
