"""Observes the memory of one training step under torch's profiler, after one lead-in step, and then removes everything
that it installed. The two steps take a few times as long, but compute the same values. If observation is not possible,
the reason is recorded."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import msgspec

from slipstream.memory.accounting import Scene, account
from slipstream.memory.address_names import AddressNames
from slipstream.memory.allocations import read_trace
from slipstream.memory.allocator_history import AllocatorHistory, HistoryEntry
from slipstream.memory.device import counts_everything, device_of, profiled_device, read_room_bytes, read_split_bytes
from slipstream.memory.trace_marks import TraceMarks
from slipstream.observe.anatomy.modules import is_sealed, list_modules
from slipstream.observe.anatomy.quiet_profiler import IN_USE, QuietProfile, is_profiler_in_use
from slipstream.records import Footprint
from slipstream.seams.batches import count_samples
from slipstream.seams.nested import walk_tensors


class Observer:
    """Call `start`, run a step, call `turn`, run a step, call `stop`, all in the thread that runs the script. The
    second step is the observed one. The first step is recorded too. If a tensor of the first step is still alive in the
    second one, its allocation and its owner are therefore known. An instance is used once."""

    def __init__(self, models: list[Any], optimizers: list[Any]) -> None:
        self.reason = ""
        self.num_samples = 0
        self.batch_size = 0
        self._is_fed = False  # whether a loader supplies the batches
        self.device = device_of(models)
        self._entries = list_modules(models)
        self._names = AddressNames(self._entries, optimizers, self.device)
        # A compiled callable would be recompiled under a mode, and the lines inside it are not visible anyway.
        self._marks = TraceMarks(self._entries, self._names, with_lines=not any(is_sealed(model) for model in models))
        self._profile: QuietProfile | None = None
        self._history: AllocatorHistory | None = None
        self._first_snap = -1
        self._undo = ExitStack()

    def start(self) -> bool:
        if is_profiler_in_use():
            self.reason = IN_USE
            return False
        try:
            self._profile = QuietProfile(profiled_device(self.device), profile_memory=True)
            self._profile.start()
            self._undo.callback(self._profile.end)
            self._marks.start()
            self._undo.callback(self._marks.stop)
            if self.device.startswith("cuda"):
                self._history = AllocatorHistory(self.device)
                self._history.start()
                self._undo.callback(self._history.stop)
        except Exception as error:
            self._undo.close()
            self.reason = f"the step could not be observed: {type(error).__name__}: {error}"
        return not self.reason

    def turn(self) -> None:
        self.num_samples = self.batch_size = 0
        self._first_snap = self._marks.snap(self._names.everything())

    def see_batch(self, batch: Any) -> None:
        self._is_fed = True
        samples = count_samples(batch)
        self.num_samples += samples
        self.batch_size = max(self.batch_size, samples)
        self._marks.snap(self._names.inputs(batch))

    def see_call(self, arguments: Any, is_model: bool = True) -> None:
        """Records the arguments of a call of a module. Tensors without a graph are inputs. If no loader supplied a
        batch, the inputs of the model are the batch. A loss is a module too, but its inputs do not count as a batch,
        because their rows may be tokens."""
        tensors = [tensor for _, tensor in walk_tensors(arguments) if not tensor.requires_grad]
        if is_model and not self._is_fed:
            self.num_samples += count_samples(tensors)
            self.batch_size = max(self.batch_size, count_samples(tensors))
        self._marks.snap(self._names.inputs(tensors))

    def stop(self) -> Footprint | None:
        """Returns the footprint, or None if the observed step was not reached or could not be read."""
        if self._first_snap >= 0:
            self._marks.snap([*self._names.weights(), *self._names.optimizer_state(), *self._names.gradients()])
            room_bytes = read_room_bytes(self.device)
        history = self._history.read() if self._history is not None else None
        self._undo.close()
        self._names.forget()
        if self._first_snap < 0 or self._profile is None:
            return None
        try:
            return self._read(self._profile.results, room_bytes, history)
        except Exception as error:
            self.reason = f"the observed step could not be read: {type(error).__name__}: {error}"
            return None
        finally:
            self._profile, self._entries = None, []

    def _read(self, results: Any, room_bytes: int, history: list[HistoryEntry] | None) -> Footprint:
        trace = read_trace(results.experimental_event_tree(), self.device, history)
        marks = self._marks
        scene = Scene(
            trace=trace,
            snaps=marks.snaps,
            first_snap=self._first_snap,
            end_ns=trace.snaps[len(marks.snaps) - 1],
            sites=marks.sites(),
            modules=[(entry.path, entry.class_name) for entry in self._entries],
            outputs=marks.outputs,
            has_true_count=counts_everything(self.device),
        )
        footprint = account(scene, self.device, self.num_samples, self.batch_size, room_bytes)
        return msgspec.structs.replace(footprint, split_bytes=read_split_bytes(self.device))
