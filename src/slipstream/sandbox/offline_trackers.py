"""Switches experiment trackers to offline mode, so that trials upload nothing."""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from slipstream.seams.import_hooks import ImportHooks

_OFFLINE = {
    "WANDB_MODE": "offline",
    "COMET_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "TRAINS_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "offline",
}
_SILENT = {"disabled", "dryrun", "offline", "debug"}  # modes set by the user that upload nothing


def silence(arrivals: ImportHooks, directory: str) -> None:
    """Switches all known trackers to offline mode. Files that they would write next to the script go to
    `directory`."""
    for name, value in _OFFLINE.items():
        if os.environ.get(name, "").lower() not in _SILENT:
            os.environ[name] = value
    os.environ["MLFLOW_TRACKING_URI"] = f"file:{directory}/mlruns"
    os.environ.setdefault("COMET_OFFLINE_DIRECTORY", directory)
    arrivals.when_imported("wandb", _silence_wandb)
    arrivals.when_imported("mlflow", functools.partial(_silence_mlflow, directory))
    arrivals.when_imported("transformers.training_args", _silence_hub)


def _silence_wandb(module: ModuleType) -> None:
    original = getattr(module, "init", None)
    if original is None:
        return

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("mode") not in _SILENT:
            kwargs["mode"] = "offline"
        return original(*args, **kwargs)

    module.__dict__["init"] = init


def _silence_mlflow(directory: str, module: ModuleType) -> None:
    original = getattr(module, "set_tracking_uri", None)
    if original is None:
        return

    @functools.wraps(original)
    def set_tracking_uri(uri: Any) -> Any:
        return original(uri if "://" not in str(uri) else f"file:{directory}/mlruns")

    module.__dict__["set_tracking_uri"] = set_tracking_uri


def _silence_hub(module: ModuleType) -> None:
    """Disables push_to_hub, with which the Trainer uploads checkpoints to the hub."""
    arguments = getattr(module, "TrainingArguments", None)
    original = getattr(arguments, "__post_init__", None)
    if arguments is None or original is None:
        return

    @functools.wraps(original)
    def __post_init__(self: Any) -> None:  # noqa: N807
        self.push_to_hub = False
        original(self)

    arguments.__post_init__ = __post_init__
