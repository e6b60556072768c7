"""Requirements on the help text of every command."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from slipstream.cli.group import COMMANDS, slipstream


def test_every_command_has_one_line_in_the_overview() -> None:
    listed = CliRunner().invoke(slipstream, ["--help"]).output.partition("Commands:")[2]
    assert "..." not in listed
    assert [line.split()[0] for line in listed.splitlines() if line] == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_an_example(name: str) -> None:
    assert f"\n  slipstream {name}" in CliRunner().invoke(slipstream, [name, "--help"]).output
