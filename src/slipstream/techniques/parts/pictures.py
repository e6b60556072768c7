"""Pictures that Pillow decodes: whether a check saw any, and what is said when workers, too, decode them otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.techniques.observation import Observation

if TYPE_CHECKING:
    from slipstream.techniques.rig import LoaderArguments, Rig


def why_no_pictures(observation: Observation) -> str:
    """ "" where Pillow was seen decoding."""
    if observation.loader is None:
        return "the script has no DataLoader"
    if not any(stack.stage == "decode" and "PIL/" in stack.leaf for stack in observation.session.stacks):
        return "Pillow was not seen decoding pictures"
    return ""


def say_for_spawned(rig: Rig, what: str) -> None:
    """Forked workers tell when they have done it; spawned ones are not heard, and it is said when they are made."""

    def look(arguments: LoaderArguments) -> None:
        from slipstream.data.obstacles import start_method  # here: it imports torch

        if arguments["num_workers"] and start_method(arguments) != "fork":
            rig.changed(what)

    rig.on_loader(look)
