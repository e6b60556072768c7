"""Tries `check` and `tune` on training scripts of other people, and compares their results with a stopwatch.

`--public FOLDER` names a folder with one subfolder for each script. Its `run.json` says how the script is run:

    {"name": ..., "repository": ..., "path": ..., "commit": ..., "license": ..., "kind": ...,
     "python": "/path/of/python", "cwd": ..., "env": {...}, "command": ["train.py", ...],
     "short": ["--epochs", "1"], "long": ["--epochs", "5"]}

`short` and `long` are added to the command and make a shorter and a longer run of the same training. A script that has
no arguments for its length has a second folder, `short_cwd`, with less data. The time of a long process minus the time
of a short process is the time of training alone, without start-up.

Every row is stored when it is measured, so an interrupted benchmark continues. A person judges whether check is right.
The judgements are in results/public_judgements.json, by the name of the script, with a reason. `--facts` prints the
facts that a judgement needs. Writes benchmarks/results/public_tunings.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from intervals import NUM_VALUES, Interval, mean_interval
from kept_promise import Processes, by_turns
from page import RESULTS, machine, write_page
from rows import ROOT, Row, Rows, read_json, table

NAME = "public_tunings"
JUDGEMENTS = RESULTS / "public_judgements.json"
JUDGED_AS = ("right", "partly right", "wrong")
WATCH = Path(__file__).parent / "public_watch.py"


@dataclass(frozen=True)
class Script:
    """The content of a `run.json`."""

    name: str
    repository: str
    path: str
    commit: str
    license: str
    python: str
    cwd: str
    command: list[str]
    short: list[str]
    long: list[str]
    env: dict[str, str]
    kind: str = ""
    short_cwd: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of the script, with which its Python imports the slipstream of this repository."""
        paths = [str(ROOT / "src"), self.env.get("PYTHONPATH", "")]
        return {**os.environ, **self.env, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def slipstream(self, *words: str) -> list[str]:
        return [self.python, "-m", "slipstream", *words]

    def run(self, command: list[str]) -> None:
        with without_traces(Path(self.cwd)):
            done = subprocess.run(
                command,
                cwd=self.cwd,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        if done.returncode:
            raise FailedError(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")


class FailedError(Exception):
    """A command of slipstream or the script itself ended with an error."""


class without_traces:  # noqa: N801  The class is used like a function.
    """Removes the files that appear in the folder inside the `with` block.

    A checkpoint, for example, would make the next run of some scripts shorter.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        self._before = set(self._folder.rglob("*"))

    def __exit__(self, *_: object) -> None:
        for path in sorted(set(self._folder.rglob("*")) - self._before):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def read_scripts(folder: Path) -> list[Script]:
    return [Script(**json.loads(path.read_text())) for path in sorted(folder.glob("*/run.json"))]


def measure(script: Script) -> Row:
    with tempfile.TemporaryDirectory() as place:
        result, recipe = Path(place) / "out.json", Path(place) / "slipstream.toml"
        row: Row = {"facts": {"repository": script.repository, "path": script.path, "commit": script.commit}}
        try:
            row["watch"] = _watch(script, result)
            row["check"] = _check(script, result)
            row["tune"] = _tune(script, result, recipe)
            if row["tune"]["recipe"]:
                row["delivered"] = asdict(_deliver(script, recipe))
        except (FailedError, RuntimeError) as failure:
            row["failure"] = str(failure)
        return row


def _watch(script: Script, result: Path) -> dict[str, Any]:
    script.run([script.python, str(WATCH), str(result), *script.command, *script.long])
    return read_json(result)


def _check(script: Script, result: Path) -> dict[str, Any]:
    script.run(script.slipstream("check", "--quiet", "--json", str(result), *script.command, *script.long))
    told = read_json(result)
    findings = [
        {key: one[key] for key in ("cause", "title", "where", "predicted_gain", "change")} for one in told["findings"]
    ]
    facts = {key: told[key] for key in ("verdict", "step_ms", "step_low_ms", "step_high_ms", "num_steps", "phases")}
    return {**facts, "findings": findings, "notes": told["notes"]}


def _tune(script: Script, result: Path, recipe: Path) -> dict[str, Any]:
    words = ("tune", "--quiet", "--recipe", str(recipe), "--json", str(result), *script.command, *script.long)
    script.run(script.slipstream(*words))
    told = read_json(result)
    singles = [one for one in told["verdicts"] if one["decision"] != "not_applicable"]
    raced = {one["technique"] for one in singles if one["ratio"] is not None or one["decision"] == "failed"}
    return {
        "recipe": told["tuning"]["recipe"],
        "total": told["total"],
        "seconds": told["tuning"]["seconds_spent"],
        "base_step_ms": told["tuning"]["base_step_ms"],
        "applicable": sorted({one["technique"] for one in singles}),
        "raced": sorted(raced),
        "verdict": told["verdict"],
    }


def _deliver(script: Script, recipe: Path) -> Interval:
    """The time of training with plain Python, divided by the time with the recipe.

    The processes of a round take turns, and each round gives one ratio.
    """
    starts = ([script.python], script.slipstream("run", "--recipe", str(recipe)))
    long_folder, short_folder = Path(script.cwd), Path(script.short_cwd or script.cwd)
    logs = []
    for _ in range(NUM_VALUES):
        lines = [
            Processes([*start, *script.command, *length], folder, 1, script.environment)
            for start in starts
            for length, folder in ((script.long, long_folder), (script.short, short_folder))
        ]
        with without_traces(long_folder), without_traces(short_folder):
            by_turns(lines)
        plain_s, tuned_s = (lines[at].seconds - lines[at + 1].seconds for at in (0, 2))
        if min(plain_s, tuned_s) <= 0:
            raise FailedError("a short process took longer than a long one")
        logs.append(math.log(plain_s / tuned_s))
    interval = mean_interval(logs)
    return Interval(*(math.exp(bound) for bound in (interval.middle, interval.low, interval.high)))


def facts(name: str, row: Row) -> str:
    """The facts that a person needs to compare check with the stopwatch."""
    lines = [f"## {name}"]
    if watch := row.get("watch"):
        lines.append(
            f"stopwatch: {watch['num_steps']} steps, median {watch['step_ms']:.4g} ms, mean"
            f" {watch['mean_step_ms']:.4g} ms; waits for data: {watch['wait_share']:.0%} of the time"
            f" ({watch['num_batches']} batches, median {watch['wait_ms']:.4g} ms); updates: {watch['updates']}"
            if "step_ms" in watch
            else f"stopwatch: only {watch['num_steps']} steps"
        )
    if check := row.get("check"):
        lines.append(f"check: {_step(check)}; {check['verdict']}")
        lines += [f"  phases: {', '.join(f'{key} {value:.4g} ms' for key, value in check['phases'].items())}"]
        lines += [f"  {one['title']} ({one['where']}), up to {one['predicted_gain']:.2f}x" for one in check["findings"]]
        lines += [f"  note: {note}" for note in check["notes"]]
    if tune := row.get("tune"):
        lines.append(f"tune: {tune['verdict']}; {_recipe(tune['recipe'])}; {_ratio(tune['total'])}")
        lines.append(f"  not raced: {', '.join(sorted(set(tune['applicable']) - set(tune['raced']))) or 'none'}")
    if delivered := row.get("delivered"):
        lines.append(f"stopwatch: {_interval(delivered)}")
    if failure := row.get("failure"):
        lines.append(f"failure: {failure}")
    return "\n".join(lines)


def render(rows: dict[str, Row], scripts: Iterable[Script], judgements: dict[str, Any], head: str) -> str:
    kinds = {script.name: script for script in scripts}
    body = table(
        [
            *("script", "kind", "step of check:", "step of the stopwatch:", "waits of check:", "of the stopwatch:"),
            *("first finding", "up to:", "check is", "raced:", "recipe", "promised:", "delivered:", "commit", "day"),
        ],
        [_cells(name, row, kinds.get(name), judgements.get(name, {})) for name, row in rows.items()],
    )
    remarks = [f"- {name}: {judgements[name]['reason']}" for name in rows if judgements.get(name, {}).get("reason")]
    counts = [f"{word} {sum(_is(judgements, name, word) for name in rows)}" for word in JUDGED_AS]
    num_applicable, num_raced = (
        sum(len(row["tune"][key]) for row in rows.values() if "tune" in row) for key in ("applicable", "raced")
    )
    share = f"{num_raced / num_applicable:.0%}" if num_applicable else "none"
    return (
        f"# Public scripts\n\n{head}\n\n{body}\n\nOf {len(rows)} scripts check was {', '.join(counts)}; the others are"
        f" not judged. Raced within the default budget: {num_raced} of {num_applicable} applicable"
        f" techniques ({share})."
        "\n\n"
        "Scripts are unmodified and their data is made. Steps are medians. The stopwatch's step is the time between two"
        " updates of one optimizer. *Waits*: the share of the step that is spent waiting for batches. *Up to*: the"
        " largest gain that check predicts. *Promised*: the total of tune. *Delivered*: the time of training with plain"
        f" Python over that with `slipstream run`, long processes minus short ones, in {NUM_VALUES} rounds of processes"
        " that take turns; intervals are 95%.\n" + ("\n" + "\n".join(remarks) + "\n" if remarks else "")
    )


def _cells(name: str, row: Row, script: Script | None, judgement: dict[str, Any]) -> list[str]:
    check, tune, watch = row.get("check"), row.get("tune"), row.get("watch", {})
    first = check["findings"][0] if check and check["findings"] else None
    source = f"{row['facts']['repository']} {row['facts']['path']}"
    return [
        f"{name} ({source}, {row['facts']['commit'][:7]})",
        script.kind if script else "",
        _step(check) if check else row.get("failure", "").replace("\n", " ").replace("|", "/")[:80],
        f"{watch['step_ms']:.4g} ms" if "step_ms" in watch else "",
        _share(check) if check else "",
        f"{watch['wait_share']:.0%}" if "wait_share" in watch else "",
        f"{first['title']} ({first['where']})".replace("|", "/") if first else "none" if check else "",
        f"{max(one['predicted_gain'] for one in check['findings']):.2f}x" if check and first else "",
        judgement.get("check", "not judged"),
        f"{len(tune['raced'])} of {len(tune['applicable'])}" if tune else "",
        _recipe(tune["recipe"]) if tune else "",
        _ratio(tune["total"]) if tune and tune["recipe"] else "",
        _interval(row["delivered"]) if "delivered" in row else "",
        row["commit"],
        row["day"],
    ]


def _is(judgements: dict[str, Any], name: str, word: str) -> bool:
    return bool(judgements.get(name, {}).get("check") == word)


def _step(check: dict[str, Any]) -> str:
    if check["step_ms"] is None:
        return "no steps"
    low, high = check["step_low_ms"], check["step_high_ms"]
    return f"{check['step_ms']:.4g} ms" + (f" ({low:.4g} to {high:.4g})" if low is not None else "")


def _share(check: dict[str, Any]) -> str:
    return f"{check['phases'].get('input', 0.0) / check['step_ms']:.0%}" if check["step_ms"] else ""


def _recipe(recipe: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in recipe.items()) or "nothing was kept"


def _ratio(total: dict[str, Any] | None) -> str:
    if total is None or total["ratio"] is None:
        return "not measured"
    return f"{total['ratio']:.2f}x ({total['low']:.2f} to {total['high']:.2f})"


def _interval(interval: dict[str, float]) -> str:
    return f"{interval['middle']:.2f}x ({interval['low']:.2f} to {interval['high']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--public", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--facts", action="store_true", help="print the stored rows for a judge, and measure nothing")
    options = parser.parse_args()
    scripts = read_scripts(options.public)
    names = [script.name for script in scripts]
    if unknown := sorted(set(options.only or ()) - set(names)):
        parser.error(f"no run.json for {', '.join(unknown)}; there are {', '.join(names)}")
    rows = Rows(NAME)
    chosen = [script for script in scripts if not options.only or script.name in options.only]
    if options.facts:
        stored = rows.stored([script.name for script in chosen])
        print("\n\n".join(facts(name, row) for name, row in stored.items()))
        return
    head = machine()
    for script in chosen:
        source = Path(script.cwd) / script.command[0]
        # type: ignore[misc]
        rows.measure(script.name, lambda script=script: measure(script), source, settings=asdict(script))
        write_page(NAME, render(rows.stored(names), scripts, read_json(JUDGEMENTS), head))


if __name__ == "__main__":
    main()
