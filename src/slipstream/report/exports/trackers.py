"""A session as a run of MLflow or Weights & Biases, if they are installed.

The settings of the tracker decide where the run is stored. Weights & Biases runs offline, so that nothing leaves this
computer without the user's consent.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from slipstream.records import Session
from slipstream.report.exports.scalars import curves, facts, values
from slipstream.report.exports.trace import to_trace
from slipstream.report.json_export.export import export

_PROJECT: Final = "slipstream"
_BATCH: Final = 1000  # metrics that MLflow accepts in one call
_LONGEST: Final = 450  # characters of a fact that MLflow accepts


class MissingTrackerError(Exception):
    """The message contains the command that installs the missing package."""


def log_to_mlflow(session: Session) -> str:
    """Stores the session as a run and returns the run's id. MLflow's own variables name the server and the experiment.
    Without these variables, the run is stored in the current folder, in the experiment `slipstream`.
    """
    mlflow = load("mlflow")
    if not (os.environ.get("MLFLOW_EXPERIMENT_NAME") or os.environ.get("MLFLOW_EXPERIMENT_ID")):
        mlflow.set_experiment(_PROJECT)
    with mlflow.start_run(run_name=_name(session)) as run, _files(session) as paths:
        mlflow.log_params({name: value[:_LONGEST] for name, value in facts(session).items()})
        mlflow.log_metrics(values(session))
        now_ms = int(time.time() * 1000)
        points = [mlflow.entities.Metric(one.name, one.value, now_ms, one.step) for one in curves(session)]
        for at in range(0, len(points), _BATCH):  # with a server, one call per metric would take minutes
            mlflow.MlflowClient().log_batch(run.info.run_id, metrics=points[at : at + _BATCH])
        for path in paths:
            mlflow.log_artifact(str(path))
        return str(run.info.run_id)


def log_to_wandb(session: Session, folder: Path) -> str:
    """Stores the session as an offline run and returns its folder, which `wandb sync` uploads."""
    wandb = load("wandb")
    folder.mkdir(parents=True, exist_ok=True)
    config = facts(session)
    settings = wandb.Settings(silent=True)
    run = wandb.init(
        project=_PROJECT, name=_name(session), dir=str(folder), mode="offline", config=config, settings=settings
    )
    try:
        with _files(session) as paths:
            for step, row in sorted(_by_step(session).items()):
                run.log(row, step=step)
            for name, value in values(session).items():
                run.summary[name] = value
            artifact = wandb.Artifact("slipstream-session", type="slipstream")
            for path in paths:
                artifact.add_file(str(path))
            run.log_artifact(artifact)
            return str(Path(run.dir).parent)
    finally:
        run.finish()


def load(name: str) -> Any:
    """Imports a module of a tracker. Raises MissingTrackerError if its package is not installed."""
    package = name.partition(".")[0]
    try:
        importlib.import_module(package)
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise MissingTrackerError(f"{package} is not installed. Install it: pip install {package}") from None


def _name(session: Session) -> str:
    return f"{session.command} {' '.join(session.script[:2] if session.script[:1] == ['-m'] else session.script[:1])}"


def _by_step(session: Session) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for point in curves(session):
        found[point.step][point.name] = point.value
    return found


@contextmanager
def _files(session: Session) -> Iterator[list[Path]]:
    """Yields temporary files to store in the run: the document that `--json` writes, and the trace."""
    with tempfile.TemporaryDirectory() as folder:
        document, trace = Path(folder) / "slipstream.json", Path(folder) / "slipstream-trace.json"
        document.write_bytes(export(session))
        trace.write_bytes(to_trace(session))
        yield [document, trace]
