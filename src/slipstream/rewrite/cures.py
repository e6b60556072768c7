"""Findings that no technique answers, as edits: written where the cure is mechanical and safe, else said with the line
that the finding suggests."""

from __future__ import annotations

from slipstream.records import Edit, Finding, Session


def cures(session: Session) -> list[Edit]:
    return [_cure(session, finding) for finding in session.findings if not finding.techniques and finding.site]


def _cure(session: Session, finding: Finding) -> Edit:
    if finding.cause == "grad_in_evaluation":
        return _without_grad(session, finding)
    reason = f"{finding.title}; {finding.advice}" if finding.advice else finding.title
    return Edit(finding.cause, "by_hand", finding.site, text=finding.change, reason=reason.rstrip("."))


def _without_grad(session: Session, finding: Finding) -> Edit:
    """Where the model was first called is the training's function, unless the evaluation came first: then none is."""
    site = finding.site
    assert site is not None
    text = "torch.no_grad()"
    training = {model.site for model in session.models if model.site is not None}
    if any((one.file, one.line) == (site.file, site.line) for one in training):
        return Edit(finding.cause, "by_hand", site, text=f"with {text}:", reason="this line may train as well")
    same = [one.function for one in training if (one.file, one.function) == (site.file, site.function)]
    return Edit(finding.cause, "without_grad", site, call=same[0] if same else "", text=text)
