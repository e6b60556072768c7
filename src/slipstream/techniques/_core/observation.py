"""What a check saw of the script, as techniques ask about it. Reads records alone, so that it works without torch, and
imports diagnose only when asked: `run` imports every technique before the script, and asks nothing."""

from __future__ import annotations

from slipstream.records import Loader, Model, Optimizer, Session, Summary, TorchFacts

_UNNAMED, _UNASKED = 100, 101  # ranks behind all that a finding names: its cause was found, or not even that


class Observation:
    def __init__(self, session: Session, is_slowing: bool = False) -> None:
        """`is_slowing`: riders have seen since that its steps grow longer as it trains."""
        self.session = session
        self.environment = session.environment
        self.is_slowing = is_slowing

    @property
    def torch(self) -> TorchFacts | None:
        return self.environment.torch

    @property
    def summary(self) -> Summary | None:
        return self.session.summary

    @property
    def device(self) -> str:
        """cpu, cuda, mps, xpu: where the model lives."""
        from slipstream.diagnose.selection import device_of

        return device_of(self.session).partition(":")[0] or "cpu"

    @property
    def num_cores(self) -> int:
        """That may be used: after affinity and the container's quota."""
        return max(1, int(self.environment.num_usable))

    @property
    def model(self) -> Model | None:
        """The largest."""
        from slipstream.diagnose.selection import main_model

        return main_model(self.session)

    @property
    def optimizer(self) -> Optimizer | None:
        from slipstream.diagnose.selection import main_optimizer

        return main_optimizer(self.session)

    @property
    def loader(self) -> Loader | None:
        """That training learns from; None where the script has no DataLoader."""
        from slipstream.diagnose.selection import training_loader

        return training_loader(self.session)

    def gain_of(self, causes: tuple[str, ...]) -> float:
        """The largest gain that a finding predicts for any of these causes; 1.0 where there is none."""
        return max((f.predicted_gain for f in self.session.findings if f.cause in causes), default=1.0)

    def rank_of(self, ident: str, causes: tuple[str, ...]) -> int:
        """How soon a finding names it: 0 for the first that one names, and last whoever no finding is about."""
        findings = self.session.findings
        named = [finding.techniques.index(ident) for finding in findings if ident in finding.techniques]
        is_asked = any(finding.cause in causes for finding in findings)
        return min(named, default=_UNNAMED if is_asked else _UNASKED)
