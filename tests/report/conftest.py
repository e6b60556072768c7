"""Synthetic sessions for the renderers: a slow one and variants of it. The numbers are chosen, not measured."""

from __future__ import annotations

import io
from collections.abc import Callable

import msgspec
import pytest
from rich.console import Console

from slipstream.records import (
    Anatomy,
    Attention,
    Block,
    Ceilings,
    Ending,
    Environment,
    Evaluation,
    Finding,
    Gpu,
    GpuReading,
    Length,
    Loader,
    Model,
    ModuleShare,
    Operator,
    Session,
    Site,
    StackCount,
    Step,
    Summary,
    TorchFacts,
)

CWD = "/home/ada/project"
LOADER_SITE = Site(f"{CWD}/train.py", 31, "loader = DataLoader(photos, batch_size=32, shuffle=True)", "main")
DECODE = 'Image.open(self.paths[index]).convert("RGB")'


def make_environment() -> Environment:
    facts = TorchFacts("2.13.0", "AVX2", 2, 2, "", "", "cpu", False, False, False, "highest", False, False)
    return Environment(
        *("Linux 6.1", "3.11.7", "0.1.0", "AMD EPYC 7B13", 1, 2, 2.0, 8_000_000_000, None, 67_108_864, 67_000_000),
        disk_kind="ssd",
        load=0.4,
        torch=facts,
    )


def make_findings() -> list[Finding]:
    return [
        Finding(
            "no_workers",
            "The loader builds every batch in the main process",
            "Input takes 41 of 63 ms a step; the loader has no workers and this machine 2 usable cores.",
            2.8,
            "loader = DataLoader(photos, batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)",
            LOADER_SITE,
            ["loader_workers"],
        ),
        Finding(
            "slow_decode",
            "Decoding photographs takes most of the input",
            "27 of 41 ms of input are spent decoding at full size; one pixel in 8 is then used.",
            1.55,
            'image.draft("RGB", (224, 224))',
            Site(f"{CWD}/data.py", 31, f"return {DECODE}", "__getitem__"),
            ["decode_at_scale", "decoded_cache"],
        ),
    ]


def make_anatomy() -> Anatomy:
    return Anatomy(
        step_ms=24.0,
        classes_ms={"contraction": 14.0, "normalisation": 3.1, "elementwise": 4.2, "other": 0.4},
        classes_flops={"contraction": 3_900_000_000},
        num_operators=212,
        flops=3_900_000_000,
        operators=[
            Operator("aten::convolution_backward", "contraction", 9, 8.1, 8.3),
            Operator("aten::mkldnn_convolution", "contraction", 9, 5.2, 5.4),
            Operator("aten::native_batch_norm", "normalisation", 9, 2.1, 2.2),
            Operator("aten::threshold_backward", "elementwise", 9, 1.4, 1.4),
            Operator("aten::clamp_min", "elementwise", 9, 0.9, 0.92),
            Operator("aten::addmm", "contraction", 1, 0.08, 0.09),
        ],
        modules=[
            ModuleShare("layers.0", "Conv2d", 3.0, 2_000_000_000, {"contraction": 3.0}, 5.0, 4_000_000_000),
            ModuleShare("layers.1", "BatchNorm2d", 1.0, 0, {"normalisation": 1.0}, 1.0),
        ],
        attentions=[Attention("blocks.0", Site(f"{CWD}/model.py", 12, "scores = q @ k.mT"), 0.21)],
        padding_share=0.3,
    )


def make_stacks() -> list[StackCount]:
    def count(stage: str, line: int, expression: str, number: int, phase: str = "input") -> StackCount:
        row = ("main", phase, stage, f"{CWD}/data.py", line, "__getitem__", expression, "PIL/Image.py:load")
        return msgspec.convert([*row, True, 1, number], StackCount)

    return [
        count("decode", 31, DECODE, 270),
        count("transform", 34, "self.crop(image)", 80),
        count("transform", 35, "self.flip(image)", 10),
        count("read", 30, "self.paths[index].read_bytes()", 20),
        msgspec.convert(
            ["main", "input", "collate", "", 0, "", "", "torch/utils/data/_utils/collate.py:collate", True, 1, 30],
            StackCount,
        ),
    ]


def make_steps() -> list[Step]:
    phases = {"input": 41.0, "transfer": 0.0, "forward": 8.0, "backward": 12.0, "optimizer": 1.2, "other": 0.8}
    first = {**phases, "input": 300.0}
    return [
        Step(index, 1, 0, 0, 63.0, first if index == 0 else phases, 32, 1, 1, 1, 1, is_first_of_epoch=index == 0)
        for index in range(48)
    ]


def make_session() -> Session:
    """Returns a session whose loader has no workers and decodes photographs."""
    phases = {"input": 41.0, "transfer": 0.0, "forward": 8.0, "backward": 12.0, "optimizer": 1.2, "other": 0.8}
    ceilings = Ceilings(compute_ms=22.0, input_ms=41.0, shared_ms=32.0, input_cpu_ms=40.0, compute_cpu_ms=24.0)
    return Session(
        "check",
        ["train.py", "--epochs", "90"],
        CWD,
        "2026-11-15T20:45:00+00:00",
        make_environment(),
        Ending("stopped", 0, 31.4),
        loaders=[Loader(*(0, LOADER_SITE, "DataLoader", "Photos", 0, 32, None, False, False, False, 313, 10_000, ""))],
        models=[Model(0, "Net", None, 1_000_000, 4_000_000, ["float32"], "cpu", False, 12)],
        blocks=[Block(0, "warmup", 0, 1), Block(1, "watch", 1, 2)],
        steps=make_steps(),
        evaluations=[Evaluation(0, 2_400_000_000, 40, 1280, 900.0, 1400.0, True, 24)],
        stacks=make_stacks(),
        length=Length(90, None, "--epochs"),
        anatomy=make_anatomy(),
        summary=Summary(
            *(48, 63.0, 62.1, 64.2, 32.0, 508.0, phases, None, "input", ceilings),
            evaluation_share=0.18,
            seconds_left=50_000.0,
            seconds_best=32_400.0,
        ),
        findings=make_findings(),
        notes=["Only the first loader was drained."],
        written=[f"{CWD}/checkpoint.pt"],
    )


def make_device_session() -> Session:
    session = make_session()
    assert session.summary is not None
    device = {"transfer": 4.0, "forward": 9.0, "backward": 11.0, "optimizer": 1.0, "other": 38.0}
    gpu = Gpu("NVIDIA A10G", 24_000_000_000, "8.6", "550")
    readings = [GpuReading(0, 0, 0.4, 3_000_000_000, 120.0), GpuReading(1, 0, 0.2, 3_000_000_000, 100.0)]
    facts = msgspec.structs.replace(session.environment.torch, accelerator="cuda", device="cuda:0")
    return msgspec.structs.replace(
        session,
        summary=msgspec.structs.replace(session.summary, device_phases=device),
        environment=msgspec.structs.replace(session.environment, gpus=[gpu], readings=readings, torch=facts),
    )


def make_healthy_session() -> Session:
    session = make_session()
    assert session.summary is not None
    phases = {"input": 0.4, "transfer": 0.0, "forward": 22.0, "backward": 38.0, "optimizer": 2.2, "other": 0.4}
    summary = msgspec.structs.replace(
        session.summary, phases=phases, bound="compute", ceilings=Ceilings(compute_ms=62.6), seconds_best=49_900.0
    )
    return msgspec.structs.replace(session, summary=summary, findings=[], stacks=[])


def make_empty_session() -> Session:
    return Session(
        "check", ["hello.py"], CWD, "2026-11-15T20:45:00+00:00", make_environment(), Ending("finished", 0, 3.1)
    )


def make_hostile_session() -> Session:
    """Returns a session in which every text from the user or the machine tries to break the output."""
    nasty = "[bold]x[/bold] <b>&amp;</b> \x1b[31mred\x07 \u202e 漢字" + "y" * 300
    session = make_session()
    finding = msgspec.structs.replace(
        session.findings[0], title=nasty, evidence=nasty, change=nasty, site=Site(f"{CWD}/[red]b.py", 3, nasty, nasty)
    )
    stacks = [
        msgspec.structs.replace(stack, file="/opt" + "/deep" * 40 + "/data.py", expression=nasty)
        for stack in session.stacks
    ]
    return msgspec.structs.replace(
        session, script=["[red]train.py", nasty], findings=[finding] * 6, stacks=stacks, notes=[nasty], written=[nasty]
    )


MAKERS: dict[str, Callable[[], Session]] = {
    "slow": make_session,
    "device": make_device_session,
    "healthy": make_healthy_session,
    "empty": make_empty_session,
    "hostile": make_hostile_session,
}


@pytest.fixture
def sessions() -> dict[str, Session]:
    return {name: make() for name, make in MAKERS.items()}


Paint = Callable[..., str]


@pytest.fixture
def paint() -> Paint:
    """Renders into text: `paint(render_session, session, width=80, encoding="ascii", colour=True)`."""

    def paint(
        render: Callable[[Session, Console], None],
        session: Session,
        *,
        width: int = 100,
        encoding: str = "utf-8",
        colour: bool = False,
    ) -> str:
        raw = io.BytesIO()
        file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
        console = Console(
            file=file,
            width=width,
            force_terminal=colour,
            color_system="truecolor" if colour else None,
            legacy_windows=False,
        )
        render(session, console)
        return raw.getvalue().decode(encoding)

    return paint
