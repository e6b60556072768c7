"""The anatomy of one training step: kinds of operators, modules, FLOPs, hand-written attention, padding, denormals."""

from slipstream.observe.anatomy.probe import Probe

__all__ = ["Probe"]
