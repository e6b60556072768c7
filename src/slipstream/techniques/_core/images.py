"""Shared code of the techniques for images that Pillow decodes or resizes: whether a check saw any, postponed decoding,
replacements of Pillow functions in C, and reports from workers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from slipstream.numbers import in_percent
from slipstream.techniques._core.card import YES, Answer, no
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    from slipstream.data.images.lazy_decode import LazyDecode
    from slipstream.records import Site
    from slipstream.seams.patching import Patches
    from slipstream.techniques._core.context import ApplyContext, LoaderArguments

Notice = Callable[[], None]
_UNSEEN = "Pillow was not seen resizing images"
_LEAST_RESIZING = 0.05  # Minimum share of resizing in the work on a batch
_RESIZES = re.compile(r"\.resize\(|\.thumbnail\(|\b(Resize|RandomResizedCrop)\(|\bImageOps\.(fit|pad|contain|cover)\(")


class Installable(Protocol):
    def install(self, patches: Patches) -> None: ...


def why_no_pictures(observation: Observation) -> str:
    """Returns a reason if the check saw no image that Pillow decodes, or else ""."""
    if observation.loader is None:
        return "the script has no DataLoader"
    if not any(stack.stage == "decode" and "PIL/" in stack.leaf for stack in observation.session.stacks):
        return "Pillow was not seen decoding images"
    return ""


def postpone(context: ApplyContext, what: str, otherwise: str, make: Callable[[Notice, Notice], LazyDecode]) -> None:
    """Installs the object that `make` returns, which decodes images only when their pixels are needed. `make` gets two
    callbacks for this object. The first one reports `what`, when the object has an effect. The second one reports
    `otherwise`, when the object has no effect or gave a wrong result. `make` may import Pillow."""
    try:
        from slipstream.data.images.lazy_decode import why_not_here
        from slipstream.data.workers.worker_flags import WorkerFlags

        if reason := why_not_here():
            context.decline(reason)
            return
        flags = WorkerFlags(lambda: context.changed(what), lambda: context.decline(otherwise))
        postponement = make(lambda: flags.raise_flag(0), lambda: flags.raise_flag(1))
    except ImportError as missing:
        context.decline(f"Pillow cannot be imported: {missing}")
        return
    flags.install(context.patches)
    postponement.install(context.patches)
    say_for_spawned(context, what)


def in_c(context: ApplyContext, what: str, otherwise: str, make: Callable[[Notice, Notice], Installable]) -> None:
    """Installs the replacement in C that `make` returns. `make` gets the two callbacks that `postpone` describes, and
    may import Pillow and compile."""
    from slipstream.data.images.c_build import CompileError
    from slipstream.data.workers.worker_flags import WorkerFlags

    flags = WorkerFlags(lambda: context.changed(what), lambda: context.decline(otherwise))
    try:
        part = make(lambda: flags.raise_flag(0), lambda: flags.raise_flag(1))
    except ImportError as missing:
        context.decline(f"Pillow cannot be imported: {missing}")
        return
    except (CompileError, LookupError) as reason:
        context.decline(str(reason))
        return
    flags.install(context.patches)
    part.install(context.patches)
    say_for_spawned(context, what)


def or_no_compiler(reason: str) -> Answer:
    """Returns a positive answer if `reason` is "" and there is a C compiler, or else a negative one."""
    from slipstream.data.images.c_build import find_compiler

    if reason:
        return no(reason)
    return YES if find_compiler() else no("there is no C compiler (cc, gcc or clang) on this machine")


def why_no_resizing(observation: Observation) -> str:
    """Returns why resizing is not worth replacing, or "". Resizing must take a noticeable share of the work on a batch.
    If the check was too short to tell, the source of the dataset decides."""
    from slipstream.diagnose.hotspots import FEWEST_SAMPLES, total
    from slipstream.diagnose.input_path import input_path

    if observation.loader is None:
        return "the script has no DataLoader"
    path = input_path(observation.session, observation.summary) if observation.summary is not None else None
    if path is None or total(path.stacks) < FEWEST_SAMPLES:
        return "" if _calls_resize(observation.loader.getitem_site) else _UNSEEN
    share = path.share([stack for stack in path.stacks if stack.leaf.endswith("PIL/Image.py:resize")])
    if share >= _LEAST_RESIZING:
        return ""
    return f"resizing by Pillow is {in_percent(share)} of the work on a batch" if share else _UNSEEN


def _calls_resize(site: Site | None) -> bool:
    try:
        text = Path(site.file).read_text(encoding="utf-8", errors="replace") if site is not None else ""
    except OSError:
        return False
    return "PIL" in text and _RESIZES.search(text) is not None


def say_for_spawned(context: ApplyContext, what: str) -> None:
    """Reports the change when a loader with spawned workers is built. Forked workers report the change when it happens,
    but spawned workers cannot report it."""

    def look(arguments: LoaderArguments) -> None:
        from slipstream.data.workers.worker_blockers import start_method  # Imported here because it imports torch.

        if arguments["num_workers"] and start_method(arguments) != "fork":
            context.changed(what)

    context.on_loader(look)
