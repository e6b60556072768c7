"""Computes what each remedy would free at the peak, from a footprint alone. Nothing is measured. With a remedy, the
peak may be in another phase. The computation takes this into account."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from slipstream.records import Footprint, ModuleBytes

_LEAST_SHARE = 0.01
_STATE_LEFT = 0.26  # the share of fp32 state that is left in eight bits, with a scale for every block of 256
_ACTIVATIONS_LEFT = 0.5  # the share of fp32 activations that is left in bfloat16
_APART = ("cuda", "xpu")

Kinds = dict[str, int]


class Remedy(msgspec.Struct, frozen=True):
    """A way to lower the peak. docs/json.md shows the descriptions."""

    name: Annotated[str, Meta(description="such as `checkpointing`")]
    what: Annotated[str, Meta(description="what the remedy does, on one short line")]
    freed_bytes: Annotated[int, Meta(description="reduction of the peak; computed, not measured")]
    numerics: Annotated[str, Meta(description="`identical`, `reordered`, `approximate` or `different`")]
    price: Annotated[str, Meta(description="what the remedy costs")]


def list_remedies(footprint: Footprint) -> list[Remedy]:
    """Returns remedies, largest first, without those that free almost nothing."""
    makers: list[Callable[[Footprint], Remedy | None]] = [
        _checkpointing,
        _micro_batches,
        _bf16,
        _small_state,
        _state_away,
    ]
    made = [remedy for make in makers if (remedy := make(footprint)) is not None]
    worth = [remedy for remedy in made if remedy.freed_bytes >= _LEAST_SHARE * footprint.peak_bytes]
    return sorted(worth, key=lambda remedy: -remedy.freed_bytes)


def _freed(footprint: Footprint, change: Callable[[Kinds], float]) -> int:
    """Returns the present peak minus the new peak. `change` returns by how much the peak of one phase falls."""
    then = [sum(kinds.values()) - change(kinds) for kinds in footprint.phases.values()]
    return max(0, round(footprint.peak_bytes - max(then, default=footprint.peak_bytes)))


def _checkpointing(footprint: Footprint) -> Remedy | None:
    """Returns the remedy with which repeated blocks store only their outputs, and only one block at a time stores its
    activations."""
    most, what = 0, ""
    for (parent, class_name), blocks in _repeated(footprint.modules).items():
        sums = [sum(m.kinds.get("activations", 0) for m in inner) for inner in blocks.values()]
        outputs = sum(m.output_bytes for path, inner in blocks.items() for m in inner if m.path == path)
        kept = outputs + max(sums)
        freed = sum(sums) - kept
        if freed > most:
            most, what = freed, f"{len(blocks)} x {class_name} in {parent or 'the model'}: recomputed in backward"
    if not most:
        return None
    share = most / max(1, footprint.kinds.get("activations", 0))
    freed = _freed(footprint, lambda kinds: share * kinds.get("activations", 0))
    return Remedy("checkpointing", what, freed, "identical", "one more forward pass")


def _repeated(modules: list[ModuleBytes]) -> dict[tuple[str, str], dict[str, list[ModuleBytes]]]:
    """Returns siblings of one class, each with the modules inside it. Only modules that contain others count."""
    classes = {module.path: module.class_name for module in modules}
    groups: dict[tuple[str, str], dict[str, list[ModuleBytes]]] = defaultdict(lambda: defaultdict(list))
    for module in modules:
        parts = module.path.split(".")
        for depth in range(1, len(parts) + 1):
            path = ".".join(parts[:depth])
            if path in classes and parts[depth - 1].isdigit():
                groups[".".join(parts[: depth - 1]), classes[path]][path].append(module)
    is_repeated = {key: len(blocks) > 1 and max(map(len, blocks.values())) > 1 for key, blocks in groups.items()}
    return {key: blocks for key, blocks in groups.items() if is_repeated[key]}


def _micro_batches(footprint: Footprint) -> Remedy | None:
    # Batch norm mixes samples, so pieces of a batch would give another result, and the technique declines.
    if footprint.batch_size < 2 or any("BatchNorm" in module.class_name for module in footprint.modules):
        return None
    inside = sum(module.kinds.get("activations", 0) for module in footprint.modules)
    share = inside / max(1, footprint.kinds.get("activations", 0))
    # The temporary memory of an optimizer has the size of the weights and does not depend on the batch.
    update = footprint.phases.get("optimizer")

    def halved(kinds: Kinds) -> float:
        temporary = 0 if kinds is update else kinds.get("temporary", 0)
        return 0.5 * (min(1.0, share) * kinds.get("activations", 0) + temporary)

    freed = _freed(footprint, halved)
    what = f"the model on two halves of {-(-footprint.batch_size // 2)} samples, with the same gradient"
    return Remedy("micro_batches", what, freed, "reordered", "one more forward pass")


def _bf16(footprint: Footprint) -> Remedy | None:
    freed = _freed(footprint, lambda kinds: (1 - _ACTIVATIONS_LEFT) * kinds.get("activations", 0))
    return Remedy("mixed_precision", "activations in bfloat16", freed, "approximate", "other rounding; weights stay")


def _small_state(footprint: Footprint) -> Remedy | None:
    if not _is_apart(footprint):
        return None
    freed = _freed(footprint, lambda kinds: (1 - _STATE_LEFT) * kinds.get("optimizer_state", 0))
    return Remedy("low_memory_optimizer", "optimizer state in eight bits", freed, "different", "another update")


def _state_away(footprint: Footprint) -> Remedy | None:
    """Returns the remedy that holds the optimizer's state on the host between updates, and on the device only during an
    update."""
    if not _is_apart(footprint):
        return None
    update = footprint.phases.get("optimizer")
    freed = _freed(footprint, lambda kinds: 0 if kinds is update else kinds.get("optimizer_state", 0))
    return Remedy("offload_optimizer", "optimizer state in host memory", freed, "identical", "two copies per update")


def _is_apart(footprint: Footprint) -> bool:
    """Whether the device has its own memory. On the CPU both techniques for the optimizer's state decline."""
    return footprint.device.startswith(_APART)
