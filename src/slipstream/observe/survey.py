"""Collects what a trial reports besides events: facts about torch, memory, leaks, the length of the training, the
anatomy of one step, rehearsals. If a part fails, the session gets a note and the trial continues. The time of these
parts does not count as time of a step. Readings of the memory between steps are the exception; they take
microseconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from slipstream.observe.leaks import LiveTensors, MemoryGauge, find_leaks
from slipstream.observe.recorder import Recorder
from slipstream.observe.token_batches import Tokens
from slipstream.observe.training_length import find_length, find_trainer
from slipstream.records import Anatomy, Site, Told
from slipstream.seams.modules.module import ModuleSeam
from slipstream.seams.patching import Patches
from slipstream.seams.training import OptimizerSeam
from slipstream.seams.user_code import current_site

if TYPE_CHECKING:
    from slipstream.observe.anatomy import Probe
    from slipstream.observe.anatomy.profile_excerpt import ProfileExcerpt


_COUNT_NS = 1_000_000_000
_MAX_PROBES = 2  # maximum number of observed steps; an epoch or a validation rarely begins in two of them
_GAUGE_NS = 50_000_000  # between two readings of the memory in use


class Survey:
    """`rehearsal_s` is the time for rehearsals; with 0, none are run. `profile_path` is a file for torch's profiler
    trace of a few steps, or "". `before_timing` is called before timings that must not be disturbed."""

    def __init__(
        self,
        recorder: Recorder,
        modules: ModuleSeam,
        optimizers: OptimizerSeam,
        rehearsal_s: float = 0.0,
        profile_path: str = "",
        before_timing: Callable[[], None] = lambda: None,
    ) -> None:
        self._recorder = recorder
        self._rehearsal_s = rehearsal_s
        self._profile_path = profile_path
        self._before_timing = before_timing
        self._modules = modules
        self._optimizers = optimizers
        self._gauge = MemoryGauge()
        self._tokens = Tokens(modules)
        self._probe: Probe | None = None
        self._num_probes = 0
        self._has_anatomy = False
        self._why_no_anatomy = ""
        self._has_leaks = False
        self._excerpt: ProfileExcerpt | None = None
        self._excerpt_step = 0  # number of steps when the excerpt began
        self._modes: dict[int, set[bool]] = {}  # by model: the training modes of its calls in the observed step
        self._caught: tuple[int, Any, tuple[Any, ...], dict[str, Any]] | None = None
        self._threads_site: Site | None = None
        self._has_autocast = False  # remembered, because autocast is off again when the step ends
        self._denormal_share = 0.0
        self._gauged_ns = 0
        self._counted_ns = 0
        self._holdings: LiveTensors | None = None  # at the last count
        self._earlier: LiveTensors | None = None  # at the count before

    def install(self, patches: Patches) -> None:
        import torch

        def after_threads(token: Any, args: Any, kwargs: Any, result: Any) -> None:
            self._threads_site = current_site()

        def after_autocast(token: Any, args: Any, kwargs: Any, result: Any) -> None:
            self._has_autocast |= bool(args[0]._enabled)

        patches.around(torch, "set_num_threads", "threads", None, after_threads)
        patches.around(torch.autocast, "__enter__", "autocast", None, after_autocast)

    def close(self) -> None:
        self._gauge.close()

    # --- when -------------------------------------------------------------------------------------------------------

    def has_optimizer(self) -> bool:
        return self._optimizers.has_any()

    def at_first_step(self) -> None:
        self._spare("the facts about torch", self._tell_torch_facts)

    def at_step(self) -> None:
        recorder = self._recorder
        now_ns = recorder.clock.now_ns()
        if now_ns - self._gauged_ns > _GAUGE_NS:
            self._gauged_ns = now_ns
            recorder.queue.add_memory(self._gauge.read(recorder.steps.num_steps, now_ns))
        if self._rehearsal_s and not self._has_anatomy:
            self._tokens.at_step(now_ns)

    def at_block(self) -> None:
        now_ns = self._recorder.clock.now_ns()
        if now_ns - self._counted_ns < _COUNT_NS:
            return  # counting iterates over every object, which takes long
        self._counted_ns = now_ns
        self._spare("the tensors alive", self._count_tensors)

    def at_end(self) -> None:
        self.end_excerpt()
        if self._why_no_anatomy and not self._has_anatomy:
            self._recorder.note(f"No profile of a step was recorded: {self._why_no_anatomy}.")
        self._spare("the length of the training", self._tell_length)
        if self._optimizers.was_made:
            self._recorder.queue.write(Told(makes_optimizer=True))
        self.tell_leaks()

    def tell_leaks(self) -> None:
        """Reports leaks while the script's variables can still be read. After an exception they are gone."""
        if not self._has_leaks:
            self._spare("what keeps tensors alive", self._tell_leaks)

    def start_excerpt(self) -> bool:
        """Starts torch's own profiler, if the user wants its trace."""
        return bool(self._profile_path) and bool(self._spare("torch's profile", self._start_excerpt))

    def end_excerpt(self) -> None:
        if self._excerpt is not None:
            self._spare("torch's profile", self._stop_excerpt)

    def start_dissection(self) -> bool:
        return bool(self._spare("the anatomy", self._start_probe))

    def break_off_dissection(self, is_whole: bool = False) -> None:
        """Ends the profilers. Is called before processes are started, because a fork under a profiler may crash."""
        self.end_excerpt()
        if self._probe is not None:
            self._spare("the anatomy", lambda: self._stop_probe(is_whole))

    def end_dissection(self) -> bool:
        """Ends the dissection. Returns False if another step is to be tried. The reason is that an epoch began in the
        observed step, or that the step contained a validation."""
        if self._probe is not None and self._has_validated() and self._num_probes < _MAX_PROBES:
            self._spare("the anatomy", self._drop_probe)
        is_whole = self._probe is not None
        self.break_off_dissection(is_whole)
        if not (is_whole or self._has_anatomy) and self._num_probes < _MAX_PROBES:
            return False
        if self._rehearsal_s:
            self._spare("the rehearsals", self._rehearse)
        return True

    def _spare(self, what: str, task: Callable[[], Any]) -> Any:
        token = self._recorder.enter("other")
        try:
            return task()
        except Exception as fault:
            self._recorder.note(f"{what} could not be read: {type(fault).__name__}: {fault}")
            return None
        finally:
            self._recorder.leave(token, "aside", -1)

    # --- what -------------------------------------------------------------------------------------------------------

    def _tell_torch_facts(self) -> None:
        from slipstream.observe.torch_facts import read_torch_facts

        models = [model for model in self._recorder.known.models() if model.num_parameters]
        facts = read_torch_facts(models[0].device if models else "cpu")
        ours = {"threads_site": self._threads_site, "autocast_seen": self._has_autocast}
        self._recorder.queue.write(Told(torch=msgspec.structs.replace(facts, **ours)))

    def _count_tensors(self) -> None:
        recorder = self._recorder
        recorder.queue.add_memory(self._gauge.read_with_tensors(recorder.steps.num_steps, recorder.clock.now_ns()))
        if self._holdings is None or recorder.steps.num_steps > self._holdings.num_steps:
            self._earlier, self._holdings = self._holdings, LiveTensors(sys._getframe(), recorder.steps.num_steps)

    def _tell_leaks(self) -> None:
        num_steps, before = self._recorder.steps.num_steps, self._holdings
        if before is not None and before.num_steps == num_steps:  # the snapshot was taken at this step
            before = self._earlier
        leaks = find_leaks(sys._getframe(), num_steps, before)
        if leaks:
            self._has_leaks = True
            self._recorder.queue.write(Told(leaks=leaks))

    def _tell_length(self) -> None:
        length = find_length(sys._getframe())
        trainer = find_trainer(sys._getframe())
        if length is not None or trainer is not None:
            self._recorder.queue.write(Told(length=length, trainer=trainer))

    def _start_excerpt(self) -> bool:
        from slipstream.observe.anatomy.profile_excerpt import ProfileExcerpt

        excerpt = ProfileExcerpt(self._profile_path, self._recorder.clock)
        self._excerpt_step = self._recorder.steps.num_steps
        if not excerpt.start():
            self._recorder.note(f"no torch profile: {excerpt.reason}")
            return False
        self._excerpt = excerpt
        return True

    def _stop_excerpt(self) -> None:
        excerpt, self._excerpt = self._excerpt, None
        assert excerpt is not None
        profile = excerpt.stop(self._recorder.steps.num_steps - self._excerpt_step)
        if profile is not None:
            self._recorder.queue.write(Told(profile=profile))
        else:
            self._recorder.note(f"no torch profile: {excerpt.reason}")

    def _start_probe(self) -> bool:
        from slipstream.observe.anatomy import Probe

        self._num_probes += 1
        self._modes.clear()
        self._probe = Probe(_alive(self._modules.models))
        self._probe.start()
        self._modules.observe_calls(self)
        return True

    def _stop_probe(self, is_whole: bool) -> None:
        probe, self._probe = self._probe, None
        assert probe is not None
        self._modules.observe_calls(None)
        anatomy = probe.stop(is_whole)
        if anatomy is not None:
            self._has_anatomy = True
            self._denormal_share = anatomy.denormal_share or 0.0
            self._recorder.queue.write(Told(anatomy=self._with_padding(anatomy)))
        else:
            self._why_no_anatomy = probe.reason

    def _with_padding(self, anatomy: Anatomy) -> Anatomy:
        """Returns the anatomy with the mean share of padding over all inspected batches. If padding was not recognised
        in the observed step, the share stays None."""
        if (observed := anatomy.padding_share) is None:
            return anatomy
        shares = self._tokens.shares_of_padding()
        shares += [] if observed in shares else [observed]  # an equal share: the batch was inspected already
        facts = {"padding_share": sum(shares) / len(shares), "padding_batches": len(shares)}
        return msgspec.structs.replace(anatomy, **facts)

    def _drop_probe(self) -> None:
        probe, self._probe = self._probe, None
        assert probe is not None
        self._modules.observe_calls(None)
        self._why_no_anatomy = "the observed step contained a validation"
        probe.drop(self._why_no_anatomy)

    def _has_validated(self) -> bool:
        """Whether a model was called both in training and in evaluation mode: then the step contained a validation."""
        return any(len(modes) == 2 for modes in self._modes.values())

    def on_call(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes the model's mode, and stores the arguments of the largest model that trains, for the rehearsals."""
        self._modes.setdefault(id(model), set()).add(model.training)
        size = sum(parameter.numel() for parameter in model.parameters()) if model.training else 0
        if size and (self._caught is None or size > self._caught[0]):
            self._caught = (size, model, args, kwargs)

    def _rehearse(self) -> None:
        from slipstream.observe.rehearsal import rehearse

        caught, self._caught = self._caught, None
        model = caught[1:] if caught is not None else None
        self._before_timing()
        self._recorder.is_muted = True
        try:
            told = rehearse(model, _alive(self._optimizers.optimizers), self._denormal_share, self._rehearsal_s)
        finally:
            self._recorder.is_muted = False
        self._recorder.queue.write(Told(rehearsals=told[0]))
        for reason in told[1]:
            self._recorder.note(reason)


def _alive(references: list[Any]) -> list[Any]:
    return [thing for thing in (reference() for reference in references) if thing is not None]
