"""Records losses, scores and other results that the script prints with `print`, so that trials can be compared by these
results."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable
from typing import Any

from slipstream.seams.patching import Patches

# Other numbers, such as rates and durations, differ between two runs of the same script.
_RESULTS = [
    "loss",
    "acc",
    "accuracy",
    "auc",
    "auroc",
    "f1",
    "precision",
    "recall",
    "iou",
    "miou",
    "dice",
    "map",
    "top1",
    "top5",
    "bleu",
    "rouge",
    "ppl",
    "perplexity",
    "mse",
    "rmse",
    "mae",
    "r2",
    "psnr",
    "ssim",
    "wer",
    "cer",
    "nll",
    "error",
    "reward",
    "return",
    "score",
]
_NUMBER = r"-?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
_RESULT = re.compile(
    rf"(?P<name>(?:[a-z]+[ _/@.-])*(?:{'|'.join(_RESULTS)})(?:@\d+)?)['\"]?(?:\s*[:=]\s*|\s+)"
    rf"(?:tensor\()?(?P<value>{_NUMBER})(?![\d.]*[a-z:])",
    re.IGNORECASE,
)
_MOST = 1000  # maximum number of recorded results, for scripts that print one in every step
_LONGEST = 2000  # maximum number of characters of a line


class PrintedMetrics:
    """Reads the arguments of the script's calls of `print`."""

    def __init__(self, num_ticks: Callable[[], int]) -> None:
        self._num_ticks = num_ticks
        self._found: list[tuple[int, str, float]] = []
        self._num_found = 0

    def install(self, patches: Patches) -> None:
        patches.around(builtins, "print", "printed_metrics.print", self._before, _ignore)

    def take(self) -> list[tuple[int, str, float]]:
        found, self._found = self._found, []
        return found

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs.get("file") is not None or self._num_found >= _MOST:
            return
        line = " ".join(part for part in args if isinstance(part, str) and len(part) <= _LONGEST)
        # A number that is printed as an argument of its own belongs to the text before it.
        if not all(isinstance(part, str) for part in args):
            line = " ".join(str(part) for part in args if isinstance(part, str | int | float))[:_LONGEST]
        for match in _RESULT.finditer(line):
            self._num_found += 1
            self._found.append((self._num_ticks(), match["name"].lower().strip(), float(match["value"])))


def _ignore(token: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Ignores the end of a call of print."""
