"""The index of the zoo: tiny training scripts for which the answer of a check is known.

A script is planted (it has one planted bottleneck), healthy (it has none) or odd (its structure is unusual). The index
reads the scripts as text and never runs them. A planted line has the mark `# <- planted`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent
MARK = "# <- planted"


@dataclass(frozen=True)
class Case:
    name: str  # Name of the script, without .py
    kind: Literal["planted", "healthy", "odd"]
    cause: str = ""  # Id of the planted cause; "" if nothing is planted
    framework: str = ""
    needs: tuple[str, ...] = ()  # Packages that the script needs in addition to torch and numpy
    exit_code: int = 0
    # The rehearsal that the finding depends on; "" if it depends on none. If the rehearsal gains nothing on this
    # machine, nothing is found.
    remedy: str = ""
    min_cores: int = 1  # With fewer usable cores, the check may find another line than the planted line.

    @property
    def file(self) -> Path:
        return HERE / f"{self.name}.py"

    @property
    def line(self) -> int:
        """The line of the planted fault, counted from 1; 0 if nothing is planted."""
        lines = self.file.read_text().splitlines()
        return next((number for number, text in enumerate(lines, 1) if text.rstrip().endswith(MARK)), 0)

    @property
    def length_option(self) -> str:
        """The script's own option for the length of its training."""
        return "--epochs" if '"--epochs"' in self.file.read_text() else "--steps"


def _planted(
    name: str,
    cause: str = "",
    framework: str = "",
    needs: tuple[str, ...] = (),
    *,
    remedy: str = "",
    min_cores: int = 1,
) -> Case:
    return Case(name, "planted", cause or name, framework, needs, remedy=remedy, min_cores=min_cores)


PLANTED: list[Case] = [
    _planted("no_workers", min_cores=2),
    _planted("no_workers_waiting", "no_workers"),
    _planted("too_few_workers", "worker_count"),
    _planted("too_many_workers", "worker_count", min_cores=2),
    _planted("worker_restart"),
    _planted("slow_decode", needs=("PIL",)),
    _planted("slow_transform"),
    _planted("slow_transform_alone", "slow_transform"),
    _planted("slow_read"),
    _planted("slow_collate"),
    _planted("heavy_handover"),
    _planted("no_loader_frame", "no_loader", needs=("pandas",)),
    _planted("no_loader_memmap", "no_loader"),
    _planted("frequent_saving"),
    _planted("frequent_validation"),
    _planted("frequent_logging"),
    _planted("unfused_optimizer", remedy="fused_optimizer"),
    _planted("tiny_operations"),
    _planted("grad_in_evaluation"),
    _planted("growing_memory"),
    _planted("few_threads", "cpu_threads", remedy="threads", min_cores=2),
    _planted("many_threads", "cpu_threads", remedy="threads"),
    _planted("slow_layout", remedy="channels_last"),
    _planted("denormals", remedy="flush_denormals"),
    _planted("denormal_tails", "denormals", remedy="flush_denormals"),
    _planted("lightning_no_workers", "no_workers", "lightning", ("lightning",), min_cores=2),
    _planted("transformers_slow_transform", "slow_transform", "transformers", ("transformers", "accelerate")),
    _planted("accelerate_slow_collate", "slow_collate", "accelerate", ("accelerate",)),
]

HEALTHY: list[Case] = [
    Case("healthy_mlp", "healthy"),
    Case("healthy_convnet", "healthy"),
    Case("healthy_language_model", "healthy"),
    Case("healthy_gan", "healthy"),
    Case("healthy_validation", "healthy"),
]

ODD: list[Case] = [
    Case("odd_critic", "odd"),
    Case("odd_closure", "odd"),
    Case("odd_by_hand", "odd"),
    Case("odd_accumulation", "odd"),
    Case("odd_endless_sampler", "odd"),
    Case("odd_own_iterator", "odd"),
    Case("odd_iterable", "odd"),
    Case("odd_validation", "odd"),
    Case("odd_fit_test_predict", "odd", framework="lightning", needs=("lightning",)),
    Case("odd_spawned", "odd"),
    Case("odd_executed_settings", "odd"),
    Case("odd_compiled", "odd"),
    Case("odd_compiled_step", "odd"),
    Case("odd_inference", "odd"),
    Case("odd_rollout", "odd"),
    Case("odd_reinforcement", "odd"),
    Case("odd_raises", "odd", exit_code=1),
    Case("odd_exits", "odd", exit_code=3),
    Case("odd_zipped", "odd"),
]

ZOO: list[Case] = [*PLANTED, *HEALTHY, *ODD]
