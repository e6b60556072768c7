"""slipstream selftest: test every technique and seam on this machine, and write a report for an issue."""

from __future__ import annotations

import functools
from pathlib import Path

import click

from slipstream.cli.group import Action, require_training


@click.command("selftest", short_help="Test every technique on this device.")
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="cpu, cuda, cuda:1, mps, xpu.")
@click.option("--only", default="", metavar="A,B", help="Test only these techniques; seams tests the hooks.")
@click.option(
    "--report",
    "report_path",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    default=Path("slipstream-selftest.md"),
    show_default=True,
    metavar="FILE",
    help="The file for the report.",
)
def command(device: str, only: str, report_path: Path) -> Action:
    """Test every technique and every seam (a hook in torch) on this machine, and write a report.

    The test takes a few minutes. Use it after an update of torch, on a new kind of device, or before you report a bug.

    \b
    slipstream selftest
    slipstream selftest --device cuda
    slipstream selftest --only compile,seams

    The exit code is 0 only if every test passes. Attach the report to an issue. It contains the results and a
    description of the environment without paths and names, and nothing of your own code.
    """
    from slipstream.testing.selftest import parts

    names = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in parts()]:
        raise click.BadParameter(f"there is no {unknown[0]!r}; there are: {', '.join(parts())}.", param_hint="--only")
    require_training("slipstream selftest")
    return functools.partial(_test, device, names or parts(), report_path)


def _test(device: str, names: list[str], report_path: Path) -> int:
    from slipstream.machine.environment import read_environment
    from slipstream.testing.selftest import SEAMS, SelftestPart, run_part, write_report

    environment = read_environment(Path.cwd())
    results: list[SelftestPart] = []
    try:
        for number, name in enumerate(names, start=1):
            click.echo(f" {number:>2}/{len(names)}  {name:<20} ", nl=False)
            part = run_part(name, device)
            results.append(part)
            num_ok = sum(outcome.is_ok for outcome in part.outcomes)
            click.echo(f"{num_ok} of {len(part.outcomes)} passed")
            for outcome in part.outcomes:
                if not outcome.is_ok:
                    click.echo(f"         {outcome.name}: {outcome.detail}")
            if name == SEAMS and not num_ok:
                break  # no hook works, for example because there is no such device, so other tests would fail too
    except KeyboardInterrupt:
        click.echo("\nslipstream: interrupted; the report has what was tested so far.", err=True)
    report_path.parent.mkdir(parents=True, exist_ok=True)
    report_path.write_text(write_report(environment, device, results), encoding="utf-8")
    holds = len(results) == len(names) and all(part.is_ok for part in results)
    click.echo(f"\n {'All tests passed' if holds else 'Not all tests passed'} on {device}. Wrote {report_path}.")
    return 0 if holds else 1
