"""Redirects files where no overlay is possible. What torch.save, safetensors and TensorBoard write goes to a temporary
directory. `torch.load` and safetensors read these files from there. Other files that the script opens for writing are
only listed."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from slipstream.seams.import_hooks import ImportHooks

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_LIMIT = 200


class Redirect:
    """Redirects the writing functions of one process. Every process computes the same paths, so all processes can read
    what one of them wrote."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def place(self, path: Any) -> str:
        return f"{self._directory}{os.path.realpath(os.fspath(path))}"

    def install(self, arrivals: ImportHooks) -> None:
        arrivals.when_imported("torch.serialization", lambda module: self._divert(module, "save", "load"))
        arrivals.when_imported("safetensors.torch", lambda module: self._divert(module, "save_file", "load_file"))
        arrivals.when_imported("torch.utils.tensorboard.writer", self._divert_tensorboard)

    def _divert(self, module: ModuleType, save: str, load: str) -> None:
        """Redirects torch.save(object, path) or save_file(tensors, path), and the matching load(path)."""
        original_save, original_load = getattr(module, save), getattr(module, load)
        keyword = "f" if save == "save" else "filename"

        @functools.wraps(original_save)
        def saving(*args: Any, **kwargs: Any) -> Any:
            return original_save(*self._swap(args, 1, kwargs, keyword, self._to_write), **kwargs)

        @functools.wraps(original_load)
        def loading(*args: Any, **kwargs: Any) -> Any:
            return original_load(*self._swap(args, 0, kwargs, keyword, self._to_read), **kwargs)

        module.__dict__[save], module.__dict__[load] = saving, loading

    def _divert_tensorboard(self, module: ModuleType) -> None:
        original = module.FileWriter.__init__

        @functools.wraps(original)
        def __init__(writer: Any, log_dir: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(writer, self.place(log_dir), *args, **kwargs)

        module.FileWriter.__init__ = __init__

    @staticmethod
    def _swap(
        args: tuple[Any, ...], index: int, kwargs: dict[str, Any], keyword: str, change: Callable[[Any], Any]
    ) -> tuple[Any, ...]:
        """Returns the arguments with the path replaced, whether it is positional or a keyword. A file object is not
        replaced."""
        if keyword in kwargs:
            kwargs[keyword] = change(kwargs[keyword])
            return args
        return (*args[:index], change(args[index]), *args[index + 1 :]) if len(args) > index else args

    def _to_write(self, path: Any) -> Any:
        if not isinstance(path, str | os.PathLike) or not Path(path).absolute().parent.is_dir():
            return path  # a file object, or a folder that does not exist: the script gets torch's own error
        place = self.place(path)
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        return place

    def _to_read(self, path: Any) -> Any:
        if not isinstance(path, str | os.PathLike):
            return path
        place = self.place(path)
        return place if Path(place).exists() else path


def list_openings(tell: Callable[[str], None], ignored: list[str]) -> None:
    """Calls `tell` once for each file that is opened for writing, up to a limit of files. Only for processes of trials,
    because an audit hook cannot be removed."""
    seen: set[str] = set()
    skipped = (*ignored, "/dev/", "/proc/", "/sys/")

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event != "open" or len(seen) > _LIMIT or not isinstance(args[0], str):
            return
        if not isinstance(args[2], int) or not args[2] & _WRITING:
            return
        path = os.path.abspath(args[0])
        if path in seen or path.startswith(skipped) or "/__pycache__/" in path:
            return
        seen.add(path)
        tell(path)

    sys.addaudithook(hook)
