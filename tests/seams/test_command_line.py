"""Options and values that the script's own parser has read."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import click
import click.core
import pytest

from slipstream.records import Flag
from slipstream.seams.command_line import CommandLineSeam
from slipstream.seams.patching import Patches


@pytest.fixture
def seen() -> Iterator[dict[str, Flag]]:
    flags: dict[str, Flag] = {}
    faults: list[Any] = []
    patches = Patches(lambda *fault: faults.append(fault), lambda: False)
    seam = CommandLineSeam(lambda told: flags.update({flag.name: flag for flag in told}))
    seam.install(patches)
    seam.install_click(patches, click.core)
    yield flags
    patches.close()
    assert not faults


def test_argparse(seen: dict[str, Flag]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("-j", "--workers", type=int, default=4)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--precision", choices=["no", "bf16"], default="no")
    parser.add_argument("--milestones", type=int, nargs="*", default=[30, 60])
    args = parser.parse_args(["photos", "-j", "0"])
    assert args.workers == 0 and args.data == "photos"
    del seen["help"]
    assert seen == {
        "workers": Flag("workers", "--workers", "0"),
        "amp": Flag("amp", "--amp", "False", is_switch=True),
        "compile": Flag("compile", "--compile", "False", is_switch=True),
        "precision": Flag("precision", "--precision", "no", choices=["no", "bf16"]),
    }


def test_subcommands_of_argparse(seen: dict[str, Flag]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_subparsers().add_parser("train").add_argument("--workers", type=int, default=2)
    parser.parse_args(["train"])
    assert seen["workers"].value == "2"


def test_click(seen: dict[str, Flag]) -> None:
    @click.command()
    @click.argument("data")
    @click.option("--num-workers", "-w", default=0)
    @click.option("--bf16/--no-bf16", default=False)
    @click.option("--mode", type=click.Choice(["a", "b"]), default="a")
    def train(**options: Any) -> None:
        assert options["num_workers"] == 3

    train(["photos", "-w", "3"], standalone_mode=False)
    assert seen == {
        "num_workers": Flag("num_workers", "--num-workers", "3"),
        "bf16": Flag("bf16", "--bf16", "False", is_switch=True),
        "mode": Flag("mode", "--mode", "a", choices=["a", "b"]),
    }


@dataclass
class Arguments:
    dataloader_num_workers: int = field(default=0)
    bf16: bool = field(default=False)


def test_the_hugging_face_parser(seen: dict[str, Flag], monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(sys, "argv", ["train.py", "--dataloader_num_workers", "2"])
    (arguments,) = transformers.HfArgumentParser(Arguments).parse_args_into_dataclasses()
    assert arguments.dataloader_num_workers == 2
    assert seen["dataloader_num_workers"].value == "2"
    assert (seen["bf16"].value, seen["bf16"].is_switch) == ("False", True)
