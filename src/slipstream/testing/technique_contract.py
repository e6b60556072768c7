"""The contract of every technique, checked on real trainings in this process, on the requested device.

A technique applies or gives a reason why it does not. Where it applies, it acts or declines with a reason. It keeps its
numerics class. It does not hide exceptions or the death of a worker. Its checkpoints load without the technique. It
leaves no patch and no changed setting behind. The tests and `slipstream selftest` use this module.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import torch
from torch import nn
from torch.optim import optimizer as optimizers

from slipstream.machine.environment import read_environment
from slipstream.observe.torch_facts import read_torch_facts
from slipstream.records import Choice, Ending, NumericsClass, Recipe, Session, Setting, Step
from slipstream.seams.loader import read_loader
from slipstream.seams.modules.module import read_model
from slipstream.seams.patching import Patches
from slipstream.seams.training import read_optimizer
from slipstream.seams.user_code import OURS
from slipstream.techniques._core.apply_recipe import apply_recipe
from slipstream.techniques._core.catalogue import Technique, environment_of, technique
from slipstream.techniques._core.context import ApplyContext
from slipstream.techniques._core.observation import Observation
from slipstream.testing.trainings import TRAININGS, Training, TrainingOutcome

# Allowed relative deviation of the weights' norm after a few steps, and of the losses after each step.
_TOLERANCES: dict[NumericsClass, float] = {"reordered": 2e-3, "redrawn": 0.5, "approximate": 0.1, "different": 1e9}


PICTURES = "pictures"  # The workers of this training start slowly, so only techniques that concern loaders use it.


class ContractResult(msgspec.Struct, frozen=True):
    name: str
    is_ok: bool
    detail: str = ""


class RecipeRun:
    """One training under one recipe, and everything that was reported during the training."""

    def __init__(self, recipe: Recipe, is_proof: bool = False) -> None:
        self.recipe = recipe
        self.is_proof = is_proof
        self.complaints: list[str] = []
        self.leftovers: list[str] = []
        self.context: ApplyContext | None = None

    def run(self, training: Callable[[], TrainingOutcome]) -> TrainingOutcome:
        is_compiling = torch.compiler.is_dynamo_compiling
        patches = Patches(lambda seam, fault: self.complaints.append(f"{seam}: {fault!r}"), is_compiling)
        with _environment(self.recipe):
            self.context = apply_recipe(
                self.recipe, patches, lambda name, fault: self.complaints.append(f"{name}: {fault!r}"), self.is_proof
            )
            try:
                return training()
            finally:
                patches.close()
                self.leftovers = patches.leftovers


def battery(ident: str, device: str = "cpu", trainings: Sequence[str] = tuple(TRAININGS)) -> list[ContractResult]:
    """Returns the results of all checks of one technique, except `death`.

    A check that does not concern the technique holds, and its detail gives the reason.
    """
    module = technique(ident)
    results = [_check("says what it is", _describe, ident, module)]
    observations = {name: observe(TRAININGS[name], device) for name in trainings}
    for name, observation in observations.items():
        results.append(_check(f"{name}: applies or says why not", _apply_or_say, module, observation))
    willing = [name for name, seen in observations.items() if module.applies(seen).is_yes]
    recipe = _recipe(ident, [observations[name] for name in willing])
    others = [name for name in trainings if name != PICTURES]
    others = others if willing else others[:1]  # If the technique applies to no training, one is enough.
    for name in [*others, *([PICTURES] if PICTURES in trainings and _concerns_loaders(module) else [])]:
        for what, check in _CHECKS.items():
            results.append(_check(f"{name}: {what}", check, module, recipe, TRAININGS[name], device))
    if willing:
        places = [TRAININGS[name] for name in willing]
        results.append(_check("where it applies it acts, or says why not", _act, recipe, places, device))
    return results


def death(ident: str, device: str = "cpu") -> list[ContractResult]:
    """Kills a loader's worker. This must be the last check in a process, because torch may report the death again
    whenever a child process ends.
    """
    module, training = technique(ident), TRAININGS.get(PICTURES)
    # With a technique of the class `different`, the loader may no longer wait for a batch of the worker.
    if training is None or not _concerns_loaders(module) or module.CARD.numerics == "different":
        return []
    seen = observe(training, device)
    recipe = _recipe(ident, [seen] if module.applies(seen).is_yes else [])
    return [_check(f"{PICTURES}: a worker dies", _check_worker, recipe, training, device)]


def _concerns_loaders(module: Technique) -> bool:
    return module.CARD.seam in ("loader", "transfer")


def _recipe(ident: str, willing: Sequence[Observation]) -> Recipe:
    """Returns a recipe of the technique with its first setting for the first training to which it applies. If it
    applies to none, the setting is the first of all its settings."""
    module = technique(ident)
    settings: Sequence[Setting] = module.settings(willing[0]) if willing else getattr(module, "VALUES", (True,))
    return Recipe((Choice(ident, settings[0]),))


def observe(training: Training, device: str) -> Observation:
    """Returns the facts that a check of this training would have recorded and that techniques use."""
    outcome = bare(training, device)
    loaders = [read_loader(outcome.loader, 0, None, None)] if outcome.loader is not None else []
    steps = [Step(0, 0, 0, 1, 1.0, {}, 8, 1, 1, 1, 1)] if loaders else []  # A step that took a batch
    models = [read_model(model, index, (), {}) for index, model in enumerate(outcome.models.values())]
    steppers = [read_optimizer(one, index, None) for index, one in enumerate(outcome.optimizers.values())]
    place = str(next(next(iter(outcome.models.values())).parameters()).device)
    environment = msgspec.structs.replace(_machine(), torch=read_torch_facts(place))
    ending = Ending("finished", 0, 0.0)
    session = Session("check", [], os.getcwd(), "", environment, ending)
    return Observation(
        msgspec.structs.replace(session, models=models, optimizers=steppers, loaders=loaders, steps=steps)
    )


_machine = functools.cache(lambda: read_environment(os.getcwd()))


@functools.cache
def bare(training: Training, device: str, resumed: bool = False, again: bool = False) -> TrainingOutcome:
    """Returns the outcome of the training without a recipe. Each outcome is computed once for all techniques."""
    return training(device, checkpoint=bare(training, device).checkpoint) if resumed else training(device)


# Each check returns a text if it holds, and raises AssertionError if it does not.


def _check(name: str, check: Callable[..., str], *subject: Any) -> ContractResult:
    try:
        with _nothing_left_behind():
            return ContractResult(name, True, check(*subject))
    except Exception as fault:
        return ContractResult(name, False, f"{type(fault).__name__}: {fault}")


def _describe(ident: str, module: Technique) -> str:
    assert module.__name__.endswith(f".{ident}") and (module.__doc__ or "").strip(), "no docstring: the card is missing"
    assert "Helps" in module.__doc__ and "Hurts" in module.__doc__, "the docstring must say when it helps and hurts"
    return module.CARD.title


def _apply_or_say(module: Technique, observation: Observation) -> str:
    answer = module.applies(observation)
    if not answer.is_yes:
        assert answer.reason, "refused without a reason"
        return f"does not apply: {answer.reason}"
    settings = module.settings(observation)
    assert settings, "applies, but has no setting to try"
    allowed = getattr(module, "VALUES", (True,))
    assert all(setting in allowed for setting in settings), f"{settings} are not all in {allowed}"
    for setting in settings:
        assert all(edit.technique == module.__name__.rpartition(".")[2] for edit in module.edit(observation, setting))
    return f"applies: {', '.join(map(str, settings))}"


def _check_numerics(module: Technique, recipe: Recipe, training: Training, device: str) -> str:
    base, again = bare(training, device), bare(training, device, again=True)
    recipe_run = RecipeRun(recipe, is_proof=module.CARD.needs_proof)
    changed = recipe_run.run(lambda: training(device))
    assert not recipe_run.complaints, f"it failed: {recipe_run.complaints}"
    assert not recipe_run.leftovers, f"it left {recipe_run.leftovers} behind"
    assert recipe_run.context is not None
    changes, declined = recipe_run.context.changes, recipe_run.context.declined
    numerics = module.CARD.numerics
    assert [loss for loss in changed.losses if loss == loss] == changed.losses, "a loss is not a number"
    if numerics == "identical":
        if not _are_equal(base, again):
            return "skipped: this training does not repeat itself to the bit here"
        assert _are_equal(base, changed), "claimed to be identical, but weights or losses differ"
    else:
        worst = _distance(base, changed, with_weights=numerics == "reordered", is_same=numerics != "different")
        allowed = _allowed(numerics, device)
        assert worst <= allowed, f"off by {worst:.1e}, {allowed:.0e} allowed for {numerics}"
    return "; ".join(changes) or (f"declined: {'; '.join(declined)}" if declined else "had nothing to do")


def _allowed(numerics: NumericsClass, device: str) -> float:
    """Returns the allowed deviation. It may be larger on GPUs, because convolutions use TF32 by default and sums have
    no fixed order.
    """
    tolerance = _TOLERANCES.get(numerics, 0.0)
    return tolerance if device == "cpu" or not tolerance else max(tolerance, 2e-2)


def _check_exception(module: Technique, recipe: Recipe, training: Training, device: str) -> str:
    for planted in (ValueError("planted"), KeyboardInterrupt()):
        model = _Faulty(copy.deepcopy(next(iter(bare(training, device).models.values()))).train(), planted)
        recipe_run = RecipeRun(recipe)
        try:
            recipe_run.run(functools.partial(training, device, model=model))
        except BaseException as fault:
            assert fault is planted, f"{planted!r} arrived as {fault!r}"
        else:
            raise AssertionError(f"{planted!r} was swallowed")
        assert not recipe_run.leftovers, f"it left {recipe_run.leftovers} behind"
    return "a ValueError and a Ctrl-C inside the model arrived as they were"


def _check_checkpoint(module: Technique, recipe: Recipe, training: Training, device: str) -> str:
    base, changed = bare(training, device), RecipeRun(recipe).run(lambda: training(device))
    ours, theirs = _load(changed.checkpoint), _load(base.checkpoint)
    assert _outline(ours) == _outline(theirs), "names, shapes or flags in the checkpoint differ from a bare one's"
    after = training(device, checkpoint=changed.checkpoint)
    assert all(loss == loss for loss in after.losses), "a bare training that resumed from it has a loss that is NaN"
    resumed = RecipeRun(recipe, is_proof=module.CARD.needs_proof).run(
        lambda: training(device, checkpoint=base.checkpoint)
    )
    is_same = module.CARD.numerics != "different"
    distance = _distance(bare(training, device, resumed=True), resumed, with_weights=False, is_same=is_same)
    allowed = _allowed(module.CARD.numerics, device)
    assert distance <= allowed, f"resumed from a bare checkpoint it is off by {distance:.1e}"
    return "loads bare, and resumes from a bare one"


# The types of the loader's own error, and of torch's errors about the connection while a batch is received.
_DEATHS = (RuntimeError, EOFError, ConnectionError)


def _check_worker(recipe: Recipe, training: Training, device: str) -> str:
    """Checks that the loader reports the death of a worker, as with plain Python. Without workers nothing happens."""
    model = _Deadly(copy.deepcopy(next(iter(bare(training, device).models.values()))).train())
    recipe_run = RecipeRun(recipe)
    fault = _fault_of(lambda: recipe_run.run(functools.partial(training, device, model=model)))
    if fault is None:
        assert model.victim is None, "a worker was killed, and the loader did not report it"
    else:
        is_told = not isinstance(fault, RuntimeError) or str(model.victim) in str(fault)
        assert model.victim is not None and is_told, f"arrived as {fault!r}"
    assert not recipe_run.leftovers, f"it left {recipe_run.leftovers} behind"
    return "the loader's own error arrived" if model.victim else "there are no worker processes"


def _fault_of(run: Callable[[], object]) -> BaseException | None:
    """Returns the error that reports the death of a worker, or None if there was no error.

    torch's SIGCHLD handler raises this error again when the next worker ends, at any line of the main thread. The
    handler is therefore removed as soon as `run` has ended.
    """
    try:
        try:
            run()
        finally:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    except _DEATHS as fault:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # A second error may have been raised before the call above.
        return fault
    return None


def _act(recipe: Recipe, trainings: list[Training], device: str) -> str:
    for training in trainings:
        recipe_run = RecipeRun(recipe)
        recipe_run.run(functools.partial(training, device))
        assert recipe_run.context is not None
        if said := recipe_run.context.changes or recipe_run.context.declined:
            return "; ".join(said)
    raise AssertionError("it applies, but it changed nothing and gave no reason")


_CHECKS: dict[str, Callable[[Technique, Recipe, Training, str], str]] = {
    "numerics": _check_numerics,
    "an exception passes": _check_exception,
    "the checkpoint loads bare": _check_checkpoint,
}


class _Faulty(nn.Module):
    """Wraps the script's model, and raises an exception at its second call."""

    def __init__(self, model: nn.Module, fault: BaseException) -> None:
        super().__init__()
        self.model, self._fault, self._calls = model, [fault], 0

    def forward(self, *args: Any) -> Any:
        self._calls += 1
        if self._calls >= 2:
            raise self._fault[0]
        return self.model(*args)


class _Deadly(nn.Module):
    """Wraps the script's model, and kills a loader's worker at its second call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self._calls = model, 0
        self.victim: int | None = None

    def forward(self, *args: Any) -> Any:
        self._calls += 1
        workers = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
        if self._calls == 2 and workers:
            self.victim = min(workers)
            os.kill(self.victim, signal.SIGKILL)
        return self.model(*args)


def _load(checkpoint: bytes) -> Any:
    return torch.load(io.BytesIO(checkpoint), weights_only=True)


def _outline(thing: Any) -> Any:
    """Returns the structure of the object. Shapes, types and devices replace the values of tensors."""
    if isinstance(thing, torch.Tensor):
        return tuple(thing.shape), str(thing.dtype), thing.device.type
    if isinstance(thing, dict):
        return {key: _outline(value) for key, value in thing.items()}
    return [_outline(value) for value in thing] if isinstance(thing, (list, tuple)) else thing


def _are_equal(one: TrainingOutcome, other: TrainingOutcome) -> bool:
    theirs = other.weights()
    return one.losses == other.losses and all(torch.equal(value, theirs[key]) for key, value in one.weights().items())


def _distance(one: TrainingOutcome, other: TrainingOutcome, with_weights: bool, is_same: bool = True) -> float:
    """Returns the largest relative deviation of losses and, if `with_weights`, of weights.

    With `is_same` both trainings must have the same number of losses.
    """
    worst = max(abs(a - b) / max(abs(a), 1e-6) for a, b in zip(one.losses, other.losses, strict=is_same))
    if with_weights:
        theirs = other.weights()
        for key, value in one.weights().items():
            size = float(value.double().norm()) or 1.0
            worst = max(worst, float((value.double() - theirs[key].double()).norm()) / size)
    return worst


@contextlib.contextmanager
def _environment(recipe: Recipe) -> Iterator[None]:
    """Sets the environment variables of the recipe's techniques until the end of the `with` block."""
    wanted = {
        name: value
        for choice in recipe.choices
        for name, value in environment_of(*msgspec.structs.astuple(choice)).items()
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def _nothing_left_behind() -> Iterator[None]:
    before = _surroundings()
    yield
    after = _surroundings()
    moved = [name for name, value in before.items() if after[name] != value and _is_ours(after[name])]
    assert not moved, f"left behind: {', '.join(moved)}"


def _is_ours(value: Any) -> bool:
    """Whether the value is a state or a function of slipstream. Functions that dynamo puts into torch do not count."""
    code = getattr(value, "__code__", None)
    return code.co_filename.startswith(OURS) if code is not None else not callable(value)


def _surroundings() -> dict[str, Any]:
    owners: dict[str, Any] = {
        "Module": nn.Module,
        "Tensor": torch.Tensor,
        "autograd": torch.autograd,
        "DataLoader": torch.utils.data.DataLoader,
        "autocast": torch.autocast,
        "Optimizer": torch.optim.Optimizer,
    }
    places = {
        f"{owner}.{name}": value
        for owner, thing in owners.items()
        for name, value in vars(thing).items()
        if callable(value)
    }
    smallest = torch.full((4096,), torch.finfo(torch.float32).tiny)
    return {
        **places,
        "torch.set_num_threads": torch.set_num_threads,
        "optimizer hooks": (
            len(optimizers._global_optimizer_pre_hooks),
            len(optimizers._global_optimizer_post_hooks),
        ),
        "threads": torch.get_num_threads(),
        "flushed denormals": bool((smallest / 2)[0].item() == 0.0),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32),
        "determinism": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "default device": str(torch.get_default_device()),
        "autocast": torch.is_autocast_enabled("cpu"),
    }
