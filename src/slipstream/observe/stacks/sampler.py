"""A lightweight stack sampler for one process. At a fixed interval it counts which line of the script is running.

A timer's signal takes the sample in the script's own thread. A sampling thread would have to wait for the interpreter
lock, and would find the script only where it releases the lock, never in its Python loops. A thread writes the
collected counts. If the script uses the timer's signal itself or trains outside the main thread, this thread also takes
the samples."""

from __future__ import annotations

import dis
import linecache
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import CodeType, FrameType, MappingProxyType

from slipstream.observe.fetch_recorder import FetchRecorder
from slipstream.observe.recorder import Recorder
from slipstream.observe.stacks.late_samples import LateSamples, returned_from
from slipstream.observe.stacks.sampling_timer import SignalTimer
from slipstream.observe.stacks.stages import expression_of, line_of, stage_of_code, stage_of_expression
from slipstream.records import StackCount, Stage
from slipstream.seams.user_code import OURS, is_user_code, is_user_frame

INTERVAL_S = 0.04  # in a virtual machine a signal costs much more than its handler
_FLUSH_S = 0.5
# The interpreter checks for signals between two bytecodes at these instructions. If a sample finds a frame at any other
# instruction, the frame is in a call or has just returned from one.
_BYTECODES = {dis.opmap[name] for name in ("JUMP_BACKWARD", "RESUME", "JUMP_ABSOLUTE", "FOR_ITER") if name in dis.opmap}
_LINELESS = ("backward", "optimizer")  # torch's own work: the user's line does not matter
_CONSUMERS = ("__next__", "__iter__", "_worker_loop")
_CONSUMING = ("torch/utils/data/dataloader.py", "torch/utils/data/_utils/worker.py")
_MAX_DEPTH = 80
_NO_CODES: Mapping[int, CodeType] = MappingProxyType({})
_OUR_DEPTH = 8  # callbacks of this package make few nested calls

Key = tuple[str, Stage, str, int, str, str, str, bool, int]


class StackSampler:
    """`block` returns the index of the open block. In a loader's worker, `fetches` records the worker's batches.
    `collate_codes` are the functions that build batches, by identity. `on_flush` is called after the counts were
    written."""

    def __init__(
        self,
        recorder: Recorder,
        block: Callable[[], int],
        fetches: FetchRecorder | None = None,
        collate_codes: Mapping[int, CodeType] = _NO_CODES,
        on_flush: Callable[[], None] = lambda: None,
    ) -> None:
        self._recorder = recorder
        self._block = block
        self._fetches = fetches
        self._collate_codes = collate_codes
        self._on_flush = on_flush
        self._counts: Counter[Key] = Counter()
        self._stop = threading.Event()
        self._has_timer = False
        self._is_counting = False
        self._sampled = 0.0
        self._timer = SignalTimer(INTERVAL_S, self._on_alarm)
        self._thread = threading.Thread(target=self._run, name="slipstream-sampler", daemon=True)
        self._bytecodes: dict[tuple[int, int], tuple[CodeType, bool]] = {}

    def start(self) -> None:
        self._sampled = time.monotonic()
        in_main = self._recorder.thread == threading.main_thread().ident
        self._has_timer = in_main and self._timer.arm()
        self._thread.start()

    def _on_alarm(self, _number: int, frame: FrameType | None) -> None:
        """Takes a sample. Signals that arrive during a long call into C are merged into one, so the sample is weighted
        with the time that has passed."""
        if self._is_counting or frame is None:
            return  # a signal during the handler: its time goes to the next sample
        self._is_counting = True
        try:
            now = time.monotonic()
            weight = max(1, round((now - self._sampled) / INTERVAL_S))
            self._sampled = now
            self._count(frame, weight)
        except Exception as fault:  # a fault must never reach the script
            self._timer.disarm()
            self._recorder.note(f"the stack sampler stopped: {type(fault).__name__}: {fault}")
        finally:
            self._is_counting = False

    def stop(self) -> None:
        """Ends the thread and writes the remaining counts."""
        self._timer.disarm()
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=2.0)
        self.flush(is_last=True)

    def flush(self, is_last: bool = False) -> None:
        counts, self._counts = self._counts, Counter()
        role = "main" if self._fetches is None else "worker"
        self._recorder.flush([StackCount(role, *key, count) for key, count in counts.items()], is_last)  # type: ignore[arg-type]

    def _run(self) -> None:
        try:
            self._sample_until_stopped()
        except Exception as fault:  # the trial continues without the sampler
            self._recorder.note(f"the stack sampler stopped: {type(fault).__name__}: {fault}")

    def _sample_until_stopped(self) -> None:
        flushed = time.monotonic()
        while True:
            if self._stop.wait(_FLUSH_S if self._has_timer else INTERVAL_S):
                return
            now = time.monotonic()
            if not self._has_timer:
                self._sample()
            if self._has_timer or now - flushed > _FLUSH_S:
                flushed = now
                # If other code has replaced the handler, this thread takes the samples from now on.
                self._has_timer = self._has_timer and self._timer.is_heard
                self.flush()
                self._on_flush()

    def _sample(self) -> None:
        frame = sys._current_frames().get(self._recorder.thread)
        if frame is not None:
            self._count(frame, 1)

    def _count(self, frame: FrameType, weight: int) -> None:
        if _is_our_own_work(frame):
            return
        is_bytecode = self._is_bytecode(frame)
        phase = self._recorder.sampled_phase() if self._fetches is None else "input"
        if phase in _LINELESS:
            key: Key = (phase, "compute", "", 0, "", "", "", not is_bytecode, self._block())
        else:
            key = self._classify(frame, phase, not is_bytecode)
        if self._fetches is not None and not self._fetches.has_fetched:
            key = ("start", *key[1:])
        self._counts[key] += weight

    def _is_bytecode(self, frame: FrameType) -> bool:
        """Whether the frame is between two bytecodes. The result is cached, because reading `co_code` copies it."""
        key = (id(frame.f_code), frame.f_lasti)
        known = self._bytecodes.get(key)
        if known is None:
            found = frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] in _BYTECODES
            known = self._bytecodes[key] = (frame.f_code, found)
        return known[1]

    def _classify(self, leaf: FrameType, phase: str, in_call: bool) -> Key:
        stage: Stage | None = None
        frame: FrameType | None = leaf
        user: FrameType | None = None
        collating = False
        for _ in range(_MAX_DEPTH):
            if frame is None:
                break
            code = frame.f_code
            if phase == "input" and _requests_batch(code):
                break  # the callers request the batch and do not build it; after a fork they are the parent's
            if user is None and is_user_frame(frame):
                user = frame
                if phase != "input":
                    break  # the callers of the user's line matter only where batches are built
            elif user is None and stage is None:
                stage = stage_of_code(code)
            elif user is not None and stage_of_code(code) == "collate":
                collating = True
            if id(code) in self._collate_codes:
                collating = True
            frame = frame.f_back
        if user is None and phase == "input" and not in_call and (returned := returned_from(leaf)) is not None:
            return self._returned_key(leaf, returned)
        if collating and stage in (None, "compute"):
            stage = "collate"
        return self._key(leaf, user, stage, phase, in_call)

    def _returned_key(self, leaf: FrameType, returned: LateSamples) -> Key:
        code, line = returned
        text = linecache.getline(code.co_filename, line).strip()
        return ("input", "transform", code.co_filename, line, code.co_name, text, _leaf_name(leaf), True, self._block())

    def _key(self, leaf: FrameType, user: FrameType | None, stage: Stage | None, phase: str, in_call: bool) -> Key:
        file, line, function, expression = "", 0, "", ""
        if phase == "input" and stage == "compute":
            stage = None  # transforms are modules too: modules that are called while a batch is built are not the model
        if user is not None:
            file, line, function = user.f_code.co_filename, line_of(user), user.f_code.co_name
            expression = expression_of(user)
            if stage is None or (stage == "compute" and user is leaf):
                stage = stage_of_expression(expression) or stage
        is_late = phase == "other" and "zero_grad" not in expression and self._recorder.loop.awaits_backward()
        if stage in (None, "compute") and is_late:
            stage = "loss"
        if stage is None:
            stage = _stage_by_phase(phase, user is leaf and not in_call)
        return (
            phase,
            stage,
            file,
            line,
            function,
            expression,
            _leaf_name(leaf),
            in_call,
            self._block(),
        )


def _leaf_name(leaf: FrameType) -> str:
    name = leaf.f_code.co_filename.replace("\\", "/")
    return f"{'/'.join(name.rsplit('/', 2)[-2:])}:{leaf.f_code.co_name}"


def _requests_batch(code: CodeType) -> bool:
    """Whether the function belongs to torch's loader. A dataset has methods of the same names."""
    return code.co_name in _CONSUMERS and code.co_filename.replace("\\", "/").endswith(_CONSUMING)


def _is_our_own_work(leaf: FrameType) -> bool:
    """Whether a callback of this package is running. A sample of a callback belongs to no line of the script. A
    function called `passing` only calls the original, and does not count as our work."""
    frame: FrameType | None = leaf
    for _ in range(_OUR_DEPTH):
        if frame is None or is_user_code(frame.f_code.co_filename):
            return False
        if frame.f_code.co_filename.startswith(OURS) and frame.f_code.co_name != "passing":
            return True
        frame = frame.f_back
    return False


def _stage_by_phase(phase: str, is_own_bytecode: bool) -> Stage:
    if phase == "input":
        return "transform"
    if phase in ("forward", "backward", "optimizer", "evaluation"):
        return "compute"
    return "python" if is_own_bytecode else "other"
