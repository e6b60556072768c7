"""What one training step is made of: kinds of operators, modules, FLOPs, hand-written attention, padding, denormals."""

from slipstream.observe.anatomy.probe import Probe

__all__ = ["Probe"]
