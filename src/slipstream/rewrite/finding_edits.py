"""Edits for findings that no technique fixes, and for the cause `no_loader`.

An edit is written if the fix is mechanical and safe. All other edits are left to the user, with the line that the
finding suggests.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from slipstream.diagnose.hoisting import hoist, hoisted
from slipstream.diagnose.steps.selection import device_of, is_on_cpu
from slipstream.records import Edit, Finding, Session

_READS = re.compile(r"^\w+ \+= .*(\.item\(\)|\bfloat\()")
_KEEPS = re.compile(r"^[\w.]+\.append\([^()]*\.item\(\)\)\s*(#|$)")


def cures(session: Session) -> list[Edit]:
    return [_edit_of(session, finding) for finding in session.findings if finding.site and _is_ours(finding)]


def _is_ours(finding: Finding) -> bool:
    """Whether this module handles the finding. The cause `no_loader` is handled here too, because the techniques for
    this cause do not help a script that slices its batches itself.
    """
    return not finding.techniques or finding.cause == "no_loader"


def _edit_of(session: Session, finding: Finding) -> Edit:
    edit = _EDITS[finding.cause](session, finding) if finding.cause in _EDITS else None
    if edit is not None:
        return edit
    reason = f"{finding.title}. {finding.advice}" if finding.advice else finding.title
    return Edit(finding.cause, "by_hand", finding.site, text=finding.change, reason=reason.rstrip("."))


def _without_grad(session: Session, finding: Finding) -> Edit:
    """Returns the edit that disables gradients in an evaluation. The function that calls the model first is taken as
    the training function, and is never changed as a whole.
    """
    site = finding.site
    assert site is not None
    text = "torch.no_grad()"
    training = {model.site for model in session.models if model.site is not None}
    if any((one.file, one.line) == (site.file, site.line) for one in training):
        return Edit(
            finding.cause, "by_hand", site, text=f"with {text}:", reason="this line may also be used for training"
        )
    same = [one.function for one in training if (one.file, one.function) == (site.file, site.function)]
    return Edit(finding.cause, "without_grad", site, call=same[0] if same else "", text=text)


def _on_device(session: Session, finding: Finding) -> Edit | None:
    """Returns the edit of a line that reads a value from the device in every step, or None if the line has another
    form. Python adds floats in 64 bits. Every device except MPS can do this too."""
    site = finding.site
    if is_on_cpu(session):
        return None  # on the CPU reading a sum does not wait, so this edit saves nothing
    if site is not None and _KEEPS.match(site.text):
        kept = site.text.partition("#")[0].strip().replace(".item()", ".detach()")
        reason = f"{finding.title}; read all values together where they are used: torch.stack(...).tolist()"
        return Edit(finding.cause, "by_hand", site, text=kept, reason=reason)
    if site is None or not _READS.match(site.text):
        return None
    exact = "" if device_of(session).startswith("mps") else ".double()"
    text = re.sub(r"\.item\(\)", ".detach()", site.text.partition("#")[0].strip())
    return Edit(finding.cause, "running_sum", site, argument=exact, text=text)


def _once(session: Session, finding: Finding) -> Edit | None:
    """Returns the edit of a line that converts a table batch by batch, or None if the line has another form."""
    if finding.site is None or not hoist(finding.site.text):
        return None
    return Edit(finding.cause, "convert_once", finding.site, text=hoisted(finding.site.text))


def _detached(session: Session, finding: Finding) -> Edit | None:
    leak = max(session.leaks, key=lambda one: one.num_tensors, default=None)
    if leak is None or leak.site != finding.site or ".detach()" in finding.change:
        return None
    return Edit(finding.cause, "detached", finding.site, call=leak.name, text=finding.change)


_EDITS: Final[dict[str, Callable[[Session, Finding], Edit | None]]] = {
    "grad_in_evaluation": _without_grad,
    "frequent_sync": _on_device,
    "no_loader": _once,
    "growing_memory": _detached,
}
