"""The stages of the speed test. Each gives plausible readings, or a sentence if it cannot be measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from slipstream.machine.speedtest import decode, disk, run, torch_process
from slipstream.machine.speedtest.run import read_memory, read_starts
from slipstream.machine.speedtest.subprocesses import last_line, start


def test_disk_test_removes_its_files_and_reports_no_warm_reading_as_cold(tmp_path: Path) -> None:
    notes: list[str] = []
    readings = {one.name: one for one in disk.read_disk(tmp_path, 3 << 20, 5, notes.append)}
    assert list(tmp_path.iterdir()) == []
    assert readings["disk_warm"].value > 0
    assert ("disk_cold" in readings) != bool(notes), "cold, or the reason why not"
    told: list[str] = []
    assert not disk._is_cold(0, 1000, told.append) and "kept the file in memory" in told[0]
    assert not disk._is_cold(None, 1000, told.append) and disk._is_cold(900, 1000, told.append)
    with pytest.raises(disk.DiskError, match="too little free space"):
        disk.read_disk(tmp_path, 1 << 60, 1, notes.append)


def test_decoding_in_one_and_in_several_processes() -> None:
    photograph = decode.make_photograph()
    assert photograph[:2] == b"\xff\xd8" and 30_000 < len(photograph) < 150_000
    alone, together = decode.read_decoding(0.05, 2)
    assert (alone.name, together.name) == ("decode", "decode_scaling")
    assert alone.value > 1 and together.value > 0


def test_last_line_of_a_failed_child_is_reported(tmp_path: Path) -> None:
    child = start("slipstream.no_such_module", "1", folder=str(tmp_path))
    with pytest.raises(decode.DecodeError, match="no_such_module"):
        decode._await_ready(child)
    assert last_line(b"") == "it printed nothing"


def test_a_child_finds_slipstream_and_not_the_users_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "PIL.py").write_text("raise RuntimeError('not me')")
    monkeypatch.chdir(tmp_path)
    assert decode._rates(0.02, 1)[0] > 0


def test_memory_and_starts() -> None:
    [copied] = read_memory(0.01, 1 << 22)
    [started] = read_starts(1)
    assert copied.value > 0 and copied.unit == "GB/s"
    assert 1 < started.value < 60_000 and started.unit == "ms"


def test_multiplying_and_copying_on_the_cpu() -> None:
    reading = torch_process.multiply("fp32", torch.float32, "cpu", 0.01)
    assert reading.name == "multiply_fp32" and reading.value > 0.01 and " x " in reading.detail
    copied = torch_process.copy_to("cpu", False, 0.01, 1 << 20)
    assert (copied.name, copied.device) == ("copy_pageable", "cpu") and copied.value > 0
    assert [name for name, _ in torch_process.precisions("cuda")] == ["fp32", "bf16", "fp16", "tf32"]
    assert torch.get_float32_matmul_precision() == "highest"
    assert (
        torch_process.waiter("cuda") is torch.cuda.synchronize
        and torch_process.waiter("cuda:1") is torch.cuda.synchronize
    )


def test_worker_handover_is_measured() -> None:
    assert torch_process.worker_start(1).value > 0
    reading = torch_process.hand_over(0.05, (4, 4))
    assert reading.value > 0 and reading.unit == "MB/s"


def test_failed_part_becomes_a_note() -> None:
    def fail() -> torch_process.Reading:
        raise RuntimeError('"addmm" not implemented for "Half"\nand much more')

    [line] = torch_process._guarded("Multiplying", fail)
    assert line == torch_process.TorchProcessNote(
        'Multiplying was not measured: RuntimeError: "addmm" not implemented for "Half"'
    )


def test_other_stages_run_if_one_cannot_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setattr(run.importlib.util, "find_spec", lambda name: None)
    told: list[tuple[str, float]] = []
    options = run.SpeedtestOptions(0.02, 1 << 60, 1, 1)
    test = run.SpeedtestRun(tmp_path, options, lambda what, share: told.append((what, share))).run()
    assert {one.name for one in test.readings} == {"memory_copy", "process_start"}
    assert any("too little free space" in note for note in test.notes)
    assert any("pip install pillow" in note for note in test.notes)
    assert any("pip install torch" in note for note in test.notes)
    shares = [share for _, share in told]
    assert shares == sorted(shares) and shares[-1] == 1.0
