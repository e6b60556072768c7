"""The saving seam: checkpoints that torch.save and safetensors write, with the user's line that saves them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from slipstream.seams.listener import Listener, Token
from slipstream.seams.patching import Patches
from slipstream.seams.user_code import current_site


class SavingSeam:
    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def install(self, patches: Patches, module: ModuleType, name: str) -> None:
        patches.around(module, name, f"saving.{module.__name__}", self._before, self._after, self._abandon)

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Token | None, int]:
        return self._listener.enter("other"), self._listener.place(current_site())

    def _after(self, token: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._listener.leave(token[0], "saving", token[1])

    def _abandon(self, token: Any) -> None:
        self._listener.abandon(token[0])
