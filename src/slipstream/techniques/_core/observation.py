"""What a check observed about the script, in the form in which techniques query it. This module reads records only, so
it works without torch. It imports `diagnose` only when needed, because `run` imports the techniques of a recipe and
queries nothing."""

from __future__ import annotations

from slipstream.records import Loader, Model, Optimizer, Session, Summary, TorchFacts

# Ranks of techniques that no finding names. These ranks are larger than those of named techniques. _UNNAMED: a finding
# has a cause that the technique answers. _UNASKED: no finding has such a cause.
_UNNAMED, _UNASKED = 100, 101


class Observation:
    def __init__(self, session: Session, is_slowing: bool = False) -> None:
        """`is_slowing`: later trials showed that steps become slower as the training proceeds."""
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
        """Returns the device of the model: cpu, cuda, mps or xpu."""
        from slipstream.diagnose.steps.selection import device_of

        return device_of(self.session).partition(":")[0] or "cpu"

    @property
    def num_cores(self) -> int:
        """Returns the number of usable cores, after affinity and the container's quota."""
        return max(1, int(self.environment.num_usable))

    @property
    def model(self) -> Model | None:
        """Returns the largest model."""
        from slipstream.diagnose.steps.selection import main_model

        return main_model(self.session)

    @property
    def optimizer(self) -> Optimizer | None:
        from slipstream.diagnose.steps.selection import main_optimizer

        return main_optimizer(self.session)

    @property
    def loader(self) -> Loader | None:
        """Returns the loader used for training, or None if the script has no DataLoader."""
        from slipstream.diagnose.steps.selection import training_loader

        return training_loader(self.session)

    def gain_of(self, causes: tuple[str, ...]) -> float:
        """Returns the largest gain that a finding predicts for any of these causes, or 1.0 if there is none."""
        return max((f.predicted_gain for f in self.session.findings if f.cause in causes), default=1.0)

    def rank_of(self, ident: str, causes: tuple[str, ...]) -> int:
        """Returns the position of the technique among those that findings name: 0 for the first one. Techniques that no
        finding names come last."""
        findings = self.session.findings
        named = [finding.techniques.index(ident) for finding in findings if ident in finding.techniques]
        is_asked = any(finding.cause in causes for finding in findings)
        return min(named, default=_UNNAMED if is_asked else _UNASKED)
