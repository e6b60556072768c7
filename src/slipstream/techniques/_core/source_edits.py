"""Edits of the user's source that several techniques need: arguments of the call that built a loader, statements about
the model before the optimizer gets its parameters, and changes of the model's inputs."""

from __future__ import annotations

import os
import re

import msgspec

from slipstream.records import Edit, Loader, Site
from slipstream.techniques._core.observation import Observation


def where(site: Site | None) -> str:
    """Returns "at train.py:31", or "in a framework" for a loader that no line of the user's code built."""
    return f"at {os.path.basename(site.file)}:{site.line}" if site is not None else "in a framework"


def argument_edits(
    observation: Observation, technique: str, arguments: dict[str, str], if_given: tuple[str, ...] = ()
) -> list[Edit]:
    """Returns one edit for each argument of the training loader's call. Arguments in `if_given` are edited only if the
    call has them."""
    loader = observation.loader
    edits = [_argument_edit(loader, technique, argument, text) for argument, text in arguments.items()]
    return [msgspec.structs.replace(edit, is_if_given=edit.argument.endswith(if_given or "?")) for edit in edits]


def _argument_edit(loader: Loader | None, technique: str, argument: str, text: str) -> Edit:
    observed = repr(getattr(loader, argument, ""))
    if loader is None or loader.site is None:
        reason = f"pass {argument}={text} to the DataLoader. The line that builds it was not found"
        return Edit(technique=technique, kind="by_hand", site=None, argument=argument, text=text, reason=reason)
    call = _callee(loader)
    if call == "TrainingArguments":
        argument = f"dataloader_{argument}"
    return Edit(technique, "argument", loader.site, call, argument, text, observed=observed if observed != "''" else "")


def _callee(loader: Loader) -> str:
    if loader.framework == "transformers":
        return "TrainingArguments"  # The Trainer builds the loader from these arguments.
    assert loader.site is not None
    return loader.class_name if loader.class_name in loader.site.text else "DataLoader"


def loader_edits(observation: Observation, technique: str, arguments: dict[str, str]) -> list[Edit]:
    """Returns the edits that replace torch's DataLoader by slipstream.DataLoader with these arguments. Returns no edits
    if a framework builds the loader, because the framework would ignore the class or its arguments."""
    loader = observation.loader
    if loader is None or loader.site is None or loader.framework:
        return []
    edits = argument_edits(observation, technique, arguments)
    return [Edit(technique, "loader", loader.site, _callee(loader), text="slipstream.DataLoader"), *edits]


_PLACE = re.compile(r"\[0\]\[(\d+)\]|\[1\]\['(\w+)'\]")  # A whole argument, not an element of an argument


def why_by_hand(observation: Observation) -> str:
    """Returns why the edits must be made by hand, or "" if the script calls one model. Techniques change all models,
    but an edit can name only one."""
    count = sum(model.num_parameters > 0 for model in observation.session.models)
    return f"the script calls {count} models: make the change for each of them" if count > 1 else ""


def model_edit(observation: Observation, technique: str, text: str) -> Edit:
    """Returns an edit just before the line that builds the optimizer. At that line the model is complete, has a name,
    and has not been called yet."""
    model, optimizer = observation.model, observation.optimizer
    shown = text.format(model=model.name or "model" if model else "model")
    reason = "once, after the model is built and moved to its device"
    if several := why_by_hand(observation):
        return Edit(technique, "by_hand", model.site if model else None, text=shown, reason=f"{several} {reason}")
    if model is None or optimizer is None or optimizer.site is None:
        return Edit(technique, "by_hand", model.site if model else None, text=shown, reason=reason)
    if optimizer.num_parameters != model.num_parameters:
        reason += ", because the optimizer does not hold exactly its parameters"
        return Edit(technique, "by_hand", model.site, text=shown, reason=reason)
    return Edit(technique, "before", optimizer.site, call=optimizer.class_name, argument=model.name, text=text)


def input_edits(observation: Observation, technique: str, text: str, num_dimensions: int) -> list[Edit]:
    """Returns edits that append `text` to every model input with this number of dimensions."""
    model = observation.model
    reason = "append this to the images that are passed to the model"
    by_hand = [Edit(technique, "by_hand", model.site if model else None, text=text, reason=reason)]
    if model is None or model.site is None or not model.name or why_by_hand(observation):
        return by_hand
    tensors = [one for one in model.inputs if len(one.shape) == num_dimensions and "float" in one.dtype]
    places = [_PLACE.fullmatch(one.path) for one in tensors]
    if not places or None in places:
        return by_hand
    names = ["".join(filter(None, place.groups())) for place in places if place is not None]
    return [Edit(technique, "input", model.site, call=model.name, argument=name, text=text) for name in names]
