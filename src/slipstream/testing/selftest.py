"""Runs the contract checks of every technique and the check of the seams, and writes a report for an issue.

Each part runs in a process of its own, so a crash or a hang is an outcome and does not end the selftest.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from slipstream.records import Environment
from slipstream.report.redaction import Redactor

SEAMS: Final = "seams"
LIMIT_S: Final = 300.0
_REMAINING: Final = "results, error messages, versions, the hardware, and variables that change the speed of libraries"


class SelftestOutcome(msgspec.Struct, frozen=True):
    name: str
    is_ok: bool
    detail: str = ""


class SelftestPart(msgspec.Struct, frozen=True):
    """The outcomes of one part of the selftest: a technique, or the seams."""

    ident: str
    outcomes: list[SelftestOutcome]

    @property
    def is_ok(self) -> bool:
        return all(outcome.is_ok for outcome in self.outcomes)


def parts() -> list[str]:
    from slipstream.techniques._core.catalogue import catalogue

    return [SEAMS, *catalogue()]


def run_part(ident: str, device: str, limit_s: float = LIMIT_S) -> SelftestPart:
    """Runs the part in a process of its own, and returns its outcomes."""
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        answer = Path(folder) / "outcomes.json"
        command = [sys.executable, "-m", "slipstream.testing.selftest", ident, device, str(answer)]
        try:
            process = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=limit_s)
        except subprocess.TimeoutExpired:
            return SelftestPart(ident, [SelftestOutcome("ends", False, f"still running after {limit_s:.0f} s")])
        if answer.exists():
            return SelftestPart(ident, msgspec.json.decode(answer.read_bytes(), type=list[SelftestOutcome]))
        last = (process.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        return SelftestPart(ident, [SelftestOutcome("ends", False, f"exit code {process.returncode}: {last}")])


def outcomes_of(ident: str, device: str) -> Iterator[SelftestOutcome]:
    if ident == SEAMS:
        from slipstream.testing.seam_check import check_seams

        for name, is_ok, detail in check_seams(device):
            yield SelftestOutcome(name, is_ok, detail)
        return
    from slipstream.testing.technique_contract import battery, death

    for result in (*battery(ident, device), *death(ident, device)):
        yield SelftestOutcome(result.name, result.is_ok, result.detail)


def write_report(environment: Environment, device: str, results: list[SelftestPart]) -> str:
    """Returns a Markdown report for an issue: failed checks, all checks and the machine. Paths, and names of the host
    and the user, are removed."""
    redactor = Redactor(str(Path.cwd()))
    failed = [(part, outcome) for part in results for outcome in part.outcomes if not outcome.is_ok]
    num_checks = sum(len(part.outcomes) for part in results)
    lines = [
        "# slipstream selftest",
        "",
        f"{num_checks - len(failed)} of {num_checks} checks hold on `{device}`.",
        "",
        *(f"- **{part.ident}**, {outcome.name}: {_line(redactor.text(outcome.detail))}" for part, outcome in failed),
        *([""] if failed else []),
        "| part | check | holds | detail |",
        "|---|---|---|---|",
    ]
    for part in results:
        for outcome in part.outcomes:
            word = "yes" if outcome.is_ok else "**no**"
            lines.append(f"| {part.ident} | {outcome.name} | {word} | {_line(redactor.text(outcome.detail))} |")
    described = msgspec.json.encode(redactor.value(msgspec.to_builtins(environment)))
    lines += ["", "```json", msgspec.json.format(described, indent=1).decode(), "```"]
    lines += ["", f"Left out: paths, addresses, and names of the host and the user. Still in it: {_REMAINING}."]
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main(ident: str, device: str, answer: str) -> None:
    outcomes = []
    try:
        for outcome in outcomes_of(ident, device):
            outcomes.append(outcome)
    except Exception as error:
        outcomes.append(SelftestOutcome("runs", False, f"{type(error).__name__}: {error}"))
    Path(answer).write_bytes(msgspec.json.encode(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
