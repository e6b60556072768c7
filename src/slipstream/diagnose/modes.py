"""Whether the model learns in the mode it is meant to learn in. A sentence, not a finding: the cure gains no time."""

from __future__ import annotations

from slipstream.diagnose.training import outside_evaluations
from slipstream.diagnose.wording import place
from slipstream.records import Event, Session

FEW = 3  # calls: one alone may be a look at something else


def mode_note(session: Session) -> str | None:
    """A validation that calls eval() and a training that calls train() once, before its first epoch: from then on
    dropout is off, and batch norm keeps its old statistics. A model that never was in training mode is meant so."""
    with_grad = (event for event in session.events if event.kind == "forward" and event.grad)
    calls = outside_evaluations(session, with_grad)
    for ident in dict.fromkeys(call.ident for call in calls if call.training):
        own = [call for call in calls if call.ident == ident]
        last = max(position for position, call in enumerate(own) if call.training)
        if len(own) - last > FEW:
            return _sentence(session, own[last + 1])
    return None


def _sentence(session: Session, call: Event) -> str:
    step = sum(step.end_ns <= call.start_ns for step in session.steps) + 1
    site = next((model.site for model in session.models if model.ident == call.ident), None)
    where = f" (called at {place(site)})" if site else ""
    return (
        f"From step {step} on the model{where} learns in evaluation mode, without dropout and with batch norm's old "
        "statistics: eval() was called and train() not again. If that is not meant, call train() at the start of "
        "every epoch."
    )
