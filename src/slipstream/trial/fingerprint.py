"""Records the fingerprint of a trial: its losses, sketches of the gradients, buffers and weights of its first steps,
and a digest of all its weights and buffers. Losses stay on the device until the trial reports them."""

from __future__ import annotations

import hashlib
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from slipstream.records import Snapshot
from slipstream.seams.patching import Patches
from slipstream.trial.tensor_sketch import EXACT, fingerprint, sketch

# The number of first steps of each optimizer that are recorded. A tensor whose gradient is zero in some of these steps
# is recorded in later steps too, until its gradient was not zero in this number of steps or timing begins.
_NUM_SNAPSHOTS = 3


class FingerprintRecorder:
    """Records losses, gradients and buffers through hooks, and computes digests on demand."""

    def __init__(self, num_ticks: Callable[[], int], by_hand: bool = False) -> None:
        """`num_ticks` returns the index of the current step. `by_hand` says that the script updates its weights without
        an optimizer. Gradients are then recorded after each backward pass."""
        self._num_ticks = num_ticks
        self._by_hand = by_hand
        self._losses: list[tuple[int, torch.Tensor]] = []
        self._snapshots: dict[int, Snapshot] = {}  # by step
        self._num_backwards = 0
        self._num_nonzero: dict[str, int] = {}  # by tensor: the number of snapshots with a gradient that is not zero
        self._scaled: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = []  # scaled and own loss
        self._is_timed = False
        self._depth = 0
        self._modules: list[weakref.ref[torch.nn.Module]] = []
        self._names: list[str] = []  # names of the modules
        self._optimizers: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._num_looked = 0
        self._known: list[torch.device] = []
        self.unread = ""  # the reason why there is no digest
        self.aside_ns = 0  # time spent on sketches; it does not belong to the script's steps

    def install(self, patches: Patches) -> None:
        """Must be called after the techniques are installed. Then this patch of `backward` is the outermost one and
        sees the script's own loss before a technique scales it. The hook before an update then runs last, and sees the
        gradients that the update uses."""
        patches.around(torch.autograd, "backward", "fingerprint.backward", self._before, self._after, self._abandon)
        patches.around(torch.amp.GradScaler, "scale", "fingerprint.scale", None, self._after_scale)
        hook = patches.guard("fingerprint.update", self._before_step)
        self._handle = register_optimizer_step_pre_hook(hook)
        patches.on_close(self._handle.remove)

    def add_module(self, module: torch.nn.Module) -> None:
        """Includes the module's parameters and buffers in the fingerprint."""
        kind = type(getattr(module, "_orig_mod", module)).__name__
        number = sum(name.rstrip("0123456789") == kind for name in self._names)
        self._names.append(f"{kind}{number + 1}" if number else kind)
        self._modules.append(weakref.ref(module))

    # --- losses ---------------------------------------------------------------------------------------------------

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._depth += 1
        if self._depth == 1:  # nested calls belong to checkpointed parts of this call
            tensors = args[0] if args else kwargs.get("tensors")
            for tensor in (tensors,) if isinstance(tensors, torch.Tensor) else tensors or ():
                value = self._unscaled(tensor).detach()
                # A copy is made because the script may reuse the memory. The copy is not read here, because reading it
                # would wait for the device.
                self._losses.append((self._num_ticks(), value.clone() if value.numel() <= EXACT else value.sum()))

    def _after(self, token: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._depth -= 1
        if self._by_hand and not self._depth and not self._is_timed:
            step, is_whole = self._num_backwards, self._num_backwards < _NUM_SNAPSHOTS
            self._snap(dict(self._named_parameters()), step, is_whole)
            self._num_backwards += 1

    def _abandon(self, token: Any) -> None:
        self._depth -= 1

    def _after_scale(self, token: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Stores the loss before the script's own GradScaler scaled it, because two trials may have different
        scales."""
        own = args[1] if len(args) > 1 else kwargs.get("outputs")
        if isinstance(own, torch.Tensor) and isinstance(result, torch.Tensor):
            self._scaled = [pair for pair in self._scaled if pair[0]() is not None]
            self._scaled.append((weakref.ref(result), own.detach()))

    def _unscaled(self, tensor: torch.Tensor) -> torch.Tensor:
        return next((own for scaled, own in self._scaled if scaled() is tensor), tensor)

    def take_losses(self) -> list[tuple[int, float]]:
        losses, self._losses = self._losses, []
        return [(step, _value(tensor)) for step, tensor in losses]

    # --- the first steps --------------------------------------------------------------------------------------------

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        position, num_steps = self._optimizers.get(optimizer, (len(self._optimizers), 0))
        self._optimizers[optimizer] = position, num_steps + 1
        step, is_whole = num_steps, num_steps < _NUM_SNAPSHOTS
        if self._is_timed:
            if not is_whole:
                return None
            # This optimizer takes its first steps late. The snapshot gets the number of the script's step. So a trial
            # that has not reached this step is not expected to have the snapshot.
            step = max(_NUM_SNAPSHOTS, self._num_ticks())
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        # A fused optimizer undoes the scale of the script's GradScaler itself.
        scale = getattr(optimizer, "grad_scale", None)
        if not callable(closure):
            self._snap(self._named(optimizer, position), step, is_whole, scale)
            return None
        # The backward passes run later, inside the closure. A line search calls the closure more than once, and only
        # the first call is recorded.
        is_done = False

        def recorded(*inner: Any, **named: Any) -> Any:
            nonlocal is_done
            result = closure(*inner, **named)
            if not is_done:
                is_done = True
                self._snap(self._named(optimizer, position), step, is_whole, scale)
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": recorded}
        return (args[0], recorded, *args[2:]), kwargs

    def _snap(
        self, parameters: dict[str, torch.Tensor], step: int, is_whole: bool, scale: torch.Tensor | None = None
    ) -> None:
        self.synchronise()
        start_ns = time.perf_counter_ns()
        if not is_whole:  # keeps tensors whose gradients were zero before, such as those of a layer that starts at zero
            parameters = {name: p for name, p in parameters.items() if self._num_nonzero.get(name, 0) < _NUM_SNAPSHOTS}
        gradients = []
        for name, parameter in parameters.items():
            if parameter.grad is None:
                continue
            found = sketch(name, parameter.grad if scale is None else parameter.grad / scale)
            self._num_nonzero[name] = self._num_nonzero.get(name, 0) + bool(found.norm or found.num_bad)
            if is_whole or found.norm or found.num_bad:
                gradients.append(found)
        if is_whole and step not in self._snapshots:
            self._snapshots[step] = Snapshot(step, [], [sketch(name, buffer) for name, buffer in self._named_buffers()])
        if is_whole or gradients:
            snapshot = self._snapshots.setdefault(step, Snapshot(step, []))
            snapshot.gradients.extend(gradients)
            snapshot.weights.extend(sketch(name, parameter) for name, parameter in parameters.items() if is_whole)
        self.aside_ns += time.perf_counter_ns() - start_ns

    def _named(self, optimizer: Any, position: int) -> dict[str, torch.Tensor]:
        """Returns the parameters that the optimizer updates, by their names in the modules. A parameter of no known
        module is named after its position in the optimizer."""
        names = {id(parameter): name for name, parameter in self._named_parameters()}
        return {
            names.get(id(parameter), f"optimizer{position}.group{group_index}.{index}"): parameter
            for group_index, group in enumerate(optimizer.param_groups)
            for index, parameter in enumerate(group["params"])
        }

    def begin_timing(self) -> None:
        """Stops recording gradients, except in the first steps of optimizers that take these steps later. Must not be
        called from an optimizer's pre-step hook, because torch is iterating over the hooks at that time."""
        self._is_timed = True
        known = {
            id(parameter)
            for optimizer, (_, num_steps) in self._optimizers.items()
            if num_steps >= _NUM_SNAPSHOTS
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        if all(id(parameter) in known for _, parameter in self._named_parameters() if parameter.requires_grad):
            self._handle.remove()

    def end_snapshots(self) -> None:
        """Stops recording gradients for good."""
        self._is_timed = True
        self._handle.remove()

    def take_snapshots(self) -> list[Snapshot]:
        """Returns the snapshots that were not returned before. After the warm-up, the snapshots of its steps are
        complete."""
        snapshots, self._snapshots = self._snapshots, {}
        return list(snapshots.values())

    # --- all weights --------------------------------------------------------------------------------------------------

    def digest(self) -> str | None:
        """Returns a digest of all weights and buffers of the known modules and of everything that the optimizers
        update. Each tensor is included once. Returns None if a tensor cannot be read, because two states that were not
        read must not count as equal. `unread` then contains the reason."""
        tensors = [tensor for _, tensor in (*self._named_parameters(), *self._named_buffers(of_floats=False))]
        tensors += self._updated()
        whole = hashlib.blake2b(digest_size=16)
        seen: set[int] = set()
        parts: list[torch.Tensor] = []
        try:
            for tensor in tensors:
                if id(tensor) in seen:
                    continue
                seen.add(id(tensor))
                whole.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
                parts += fingerprint(tensor)
            sums = [int(part) for part in parts]
        except Exception as fault:  # a kind of tensor whose bits cannot be read
            self.unread = f"the weights could not be compared bit by bit: {fault}"
            return None
        whole.update(repr(sums).encode())
        return whole.hexdigest()

    def synchronise(self) -> None:
        """Waits for the devices that the training uses."""
        for device in self._devices():
            torch.accelerator.synchronize(device)

    def device_memory(self) -> tuple[int, int]:
        """Returns the largest peak of reserved bytes of all devices so far, and the bytes that are free on the last
        device now."""
        peak_bytes = free_bytes = 0
        for device in self._devices():
            module = torch.get_device_module(device)
            if hasattr(module, "max_memory_reserved"):
                peak_bytes = max(peak_bytes, int(module.max_memory_reserved(device)))
            if hasattr(module, "mem_get_info"):
                free_bytes = int(module.mem_get_info(device)[0])
        return peak_bytes, free_bytes

    def _devices(self) -> list[torch.device]:
        """Returns the devices on which a step's work is queued. The CPU is not included, because it works
        synchronously."""
        if len(self._optimizers) + len(self._modules) != self._num_looked:
            self._num_looked = len(self._optimizers) + len(self._modules)
            devices = {tensor.device for _, tensor in self._named_parameters()} | {p.device for p in self._updated()}
            self._known = sorted((d for d in devices if d.type not in ("cpu", "meta")), key=str)
        return self._known

    def _updated(self) -> Iterator[torch.Tensor]:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]

    def _named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for kind, module in self._alive():
            for name, parameter in module.named_parameters():
                yield f"{kind}.{_plain(name)}", parameter

    def _named_buffers(self, of_floats: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        for kind, module in self._alive():
            for name, buffer in module.named_buffers():
                if buffer.is_floating_point() or not of_floats:
                    yield f"{kind}.{_plain(name)}", buffer

    def _alive(self) -> Iterator[tuple[str, torch.nn.Module]]:
        for name, reference in zip(self._names, self._modules, strict=True):
            module = reference()
            if module is not None:
                yield name, module


def _plain(name: str) -> str:
    return name.replace("_orig_mod.", "")


def _value(tensor: torch.Tensor) -> float:
    return float(tensor.item()) if tensor.numel() == 1 else sum(tensor.flatten().cpu().double().tolist())
