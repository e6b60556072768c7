"""The techniques of the input path: when they apply, which settings they try, and what they change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from slipstream.records import Choice, Environment, Event, Recipe, Session, Setting, Site, TensorFacts
from slipstream.seams.patching import Patches
from slipstream.techniques import batched_fetch, device_prefetch, persistent_workers, pinned_memory, prefetch, workers
from slipstream.techniques._core.apply_recipe import apply_recipe
from slipstream.techniques._core.context import ApplyContext
from slipstream.techniques._core.observation import Observation
from slipstream.testing.made_sessions import LOADER_SITE, made_environment, made_loader, made_session


def machine(cores: float = 8, **facts: Any) -> Environment:
    return msgspec.structs.replace(made_environment(num_usable=cores), **facts)


def seen(input_ms: float = 20.0, cores: float = 8, machine_facts: Any = None, **loader: Any) -> Observation:
    """Returns the observation of a diagnosed script with this loader on this machine."""
    from slipstream.diagnose import diagnose

    made = made_loader(**{"persistent_workers": False, **loader})
    session = made_session(
        input_ms=input_ms,
        environment=machine(cores, **(machine_facts or {})),
        loader=made,
        num_workers=made.num_workers,
    )
    return Observation(diagnose(session))


def on_device(session: Session | None = None, **changes: Any) -> Observation:
    made = session or made_session(environment=made_environment(device="cuda:0"), transfer_ms=5.0)
    return Observation(msgspec.structs.replace(made, **changes))


@contextmanager
def applied(**choices: Setting) -> Iterator[ApplyContext]:
    faults: list[str] = []

    def complain(seam: str, fault: BaseException) -> None:
        faults.append(f"{seam}: {fault!r}")

    patches = Patches(complain, torch.compiler.is_compiling)
    try:
        yield apply_recipe(Recipe(tuple(Choice(name, setting) for name, setting in choices.items())), patches, complain)
    finally:
        patches.close()
    assert not faults


# --- workers ---------------------------------------------------------------------------------------------------------


def test_numbers_of_workers_are_near_the_prediction_and_within_the_quota() -> None:
    tried = workers.settings(seen(cores=4.0))
    assert set(tried) == {1, 2, 4}
    assert workers.settings(seen(cores=2.5)) == [2, 1]
    assert workers.settings(seen(cores=0.5)) == [1]


def test_workers_stay_within_shared_memory() -> None:
    batch = [TensorFacts("[0]", [32, 3, 512, 512], "float32", "cpu", 100_000_000)]
    tight = seen(machine_facts={"shm_free_bytes": 900_000_000}, tensor_facts=batch)
    assert max(int(count) for count in workers.settings(tight)) == 2
    full = seen(machine_facts={"shm_free_bytes": 64_000_000}, tensor_facts=batch)
    assert workers.settings(full) == []
    assert "/dev/shm" in workers.applies(full).reason


def test_fewer_workers_if_there_are_more_than_cores() -> None:
    assert set(workers.settings(seen(cores=2.0, num_workers=8))) == {2, 1, 0}


def test_workers_decline_with_a_reason(tmp_path: Path) -> None:
    assert workers.applies(seen()).is_yes
    assert workers.applies(Observation(made_session(has_loader=False))).reason == "the script has no DataLoader"
    assert "input takes only" in workers.applies(seen(input_ms=0.1)).reason
    facts = [TensorFacts("[0]", [4], "float32", "cuda:0", 16)]
    assert "on cuda:0" in workers.applies(seen(tensor_facts=facts)).reason
    assert "an epoch has only 1 batch" in workers.applies(seen(num_batches=1)).reason


def test_the_source_of_an_iterable_dataset_is_checked_before_a_trial(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("class Stream:\n    def __iter__(self): ...\n")
    site = Site(str(script), 2, "", "__iter__")
    assert "get_worker_info" in workers.applies(seen(is_iterable=True, getitem_site=site)).reason
    script.write_text("class Stream:\n    def __iter__(self): get_worker_info()\n")
    assert workers.applies(seen(is_iterable=True, getitem_site=site)).is_yes
    assert workers.settings(seen(is_iterable=True, getitem_site=site)) == [1]
    assert workers.settings(seen(is_iterable=True, getitem_site=site, num_workers=1)) == [0]
    assert "in number and size" in workers.applies(seen(is_iterable=True, getitem_site=site, num_workers=4)).reason


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        yield from range(40)


def test_an_iterable_dataset_that_does_not_shard_gets_no_workers() -> None:
    with applied(workers=2) as context:
        loader = DataLoader(Stream(), 4)
        assert loader.num_workers == 0
        assert [int(n) for batch in loader for n in batch] == list(range(40))
    assert context.changes == []
    assert "each would repeat it" in context.declined[0] and "test_input.py:" in context.declined[0]


def test_all_loaders_but_tiny_ones_are_changed() -> None:
    with applied(workers=2) as context:
        assert DataLoader(list(range(12)), 4).num_workers == 0
        assert DataLoader(list(range(40)), 4).num_workers == 2
        assert DataLoader(list(range(40)), 4, num_workers=4).num_workers == 2
    assert [change.split(" at ")[0] for change in context.changes] == [
        "workers: num_workers 0 -> 2",
        "workers: num_workers 4 -> 2",
    ]


def test_no_workers_at_all_is_a_setting() -> None:
    with applied(workers=0):
        loader = DataLoader(
            list(range(40)),
            4,
            num_workers=2,
            prefetch_factor=4,
            persistent_workers=True,
            multiprocessing_context="fork",
        )
        assert loader.num_workers == 0
        assert len(list(loader)) == 10


def test_rebuilt_loader_is_changed_once() -> None:
    """Frameworks build a second loader from the arguments of the first."""
    accelerate = pytest.importorskip("accelerate")
    with applied(workers=2, prefetch=4) as context:
        torch.manual_seed(0)
        loader = accelerate.Accelerator(cpu=True).prepare(DataLoader(list(range(40)), 4, shuffle=True))
        assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 4, True)
        ridden = [[batch.tolist() for batch in loader] for _ in range(2)]
    assert len(context.changes) == 2
    torch.manual_seed(0)
    loader = accelerate.Accelerator(cpu=True).prepare(DataLoader(list(range(40)), 4, shuffle=True))
    assert ridden == [[batch.tolist() for batch in loader] for _ in range(2)]


# --- prefetch, persistent_workers ------------------------------------------------------------------------------------


def test_prefetch_needs_workers() -> None:
    assert "no workers" in prefetch.applies(seen()).reason
    assert prefetch.applies_with(seen(), Recipe((Choice("workers", 2),))).is_yes
    assert "no workers" in prefetch.applies_with(seen(num_workers=2), Recipe((Choice("workers", 0),))).reason
    assert prefetch.settings(seen(num_workers=2)) == [4, 8]
    assert prefetch.settings(seen(num_workers=2, prefetch_factor=4)) == [8]
    assert "8 batches" in prefetch.applies(seen(num_workers=2, prefetch_factor=8)).reason


def test_prefetch_stays_within_shared_memory() -> None:
    batch = [TensorFacts("[0]", [32, 3, 512, 512], "float32", "cpu", 100_000_000)]
    tight = {"num_workers": 2, "tensor_facts": batch}
    assert prefetch.settings(seen(machine_facts={"shm_free_bytes": 1_700_000_000}, **tight)) == [4]
    none = seen(machine_facts={"shm_free_bytes": 900_000_000}, **tight)
    assert "no room" in prefetch.applies(none).reason


@pytest.mark.parametrize("order", [("workers", "prefetch"), ("prefetch", "workers")])
def test_prefetch_sees_workers_whatever_the_order(order: tuple[str, str]) -> None:
    with applied(**{name: {"workers": 2, "prefetch": 8}[name] for name in order}) as context:
        assert DataLoader(list(range(80)), 4).prefetch_factor == 8
        assert DataLoader(list(range(4)), 4).prefetch_factor is None
    assert len(context.changes) == 2


def test_prefetch_is_never_reduced() -> None:
    with applied(prefetch=4):
        assert DataLoader(list(range(80)), 4, num_workers=1, prefetch_factor=16).prefetch_factor == 16


def test_persistent_workers_decline_with_a_reason() -> None:
    assert persistent_workers.applies(seen(num_workers=2)).is_yes
    assert "already" in persistent_workers.applies(seen(num_workers=2, persistent_workers=True)).reason
    assert "no workers" in persistent_workers.applies(seen()).reason


# --- devices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [pinned_memory, device_prefetch])
def test_copies_need_a_device(module: Any) -> None:
    assert "the model is on cpu" in module.applies(seen()).reason
    mps = Observation(made_session(environment=made_environment(device="mps"), transfer_ms=5.0))
    assert "the model is on mps" in module.applies(mps).reason
    assert module.applies(on_device()).is_yes
    with applied(**{module.__name__.rpartition(".")[2]: True}) as context:
        assert not DataLoader(list(range(40)), 4).pin_memory
    if not torch.accelerator.is_available():
        assert "no CUDA" in context.declined[0] and context.changes == []


def test_data_on_the_device_is_not_pinned() -> None:
    """Torch would raise in the script's loop."""
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        there = torch.utils.data.TensorDataset(torch.empty(8, 2, device="cuda"))
    context = ApplyContext(Patches(lambda seam, fault: None, lambda: False), lambda seam, fault: None)
    for dataset, is_pinned in ((there, False), (list(range(8)), True)):
        arguments = {"dataset": dataset, "pin_memory": False}
        pinned_memory.pin(context, arguments)
        assert arguments["pin_memory"] is is_pinned
    assert "is on cuda:0 already" in context.declined[0] and len(context.changes) == 1
    facts = [TensorFacts("[0]", [4], "float32", "cpu", 16), TensorFacts("[1]", [4], "float32", "cuda:0", 16)]
    made = made_session(
        environment=made_environment(device="cuda:0"), transfer_ms=5.0, loader=made_loader(tensor_facts=facts)
    )
    for module in (pinned_memory, device_prefetch):
        assert "on the device already" in module.applies(on_device(made)).reason


def test_pinned_memory_is_done_already_only_if_copies_do_not_block() -> None:
    loader = made_loader(pin_memory=True)
    made = made_session(environment=made_environment(device="cuda:0"), transfer_ms=5.0, loader=loader)
    start_ns = next(block.start_ns for block in made.blocks if block.kind == "watch")

    def copied(blocking: bool) -> Observation:
        event = Event("transfer", 0, start_ns, start_ns + 1000, num_bytes=100, pinned=True, blocking=blocking)
        return on_device(made, events=[*made.events, event])

    assert pinned_memory.applies(copied(blocking=True)).is_yes
    assert "already" in pinned_memory.applies(copied(blocking=False)).reason


# --- the same change as an edit --------------------------------------------------------------------------------------


def test_edits_name_the_observed_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")  # set by the user, so nothing is added
    edits = workers.edit(seen(), 2)
    assert [(e.kind, e.site, e.call, e.argument, e.text) for e in edits] == [
        ("argument", LOADER_SITE, "DataLoader", "num_workers", "2"),
        ("argument", LOADER_SITE, "DataLoader", "persistent_workers", "True"),
    ]
    assert [(e.argument, e.text) for e in workers.edit(seen(num_workers=8), 2)] == [("num_workers", "2")]
    (edit,) = prefetch.edit(seen(num_workers=2), 4)
    assert (edit.technique, edit.argument, edit.text) == ("prefetch", "prefetch_factor", "4")


def test_edit_for_the_trainer_names_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")  # set by the user, so nothing is added
    site = Site("/home/ada/project/train.py", 9, "args = TrainingArguments(output_dir='x')")
    (edit, _) = workers.edit(seen(framework="transformers", site=site), 2)
    assert (edit.call, edit.argument) == ("TrainingArguments", "dataloader_num_workers")


def test_loader_without_a_line_is_edited_by_hand() -> None:
    (edit,) = persistent_workers.edit(seen(num_workers=2, site=None), True)
    assert edit.kind == "by_hand" and "persistent_workers=True" in edit.reason


def test_with_many_workers_threads_wait_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)))
    assert [workers.environment(count) for count in (0, 3, 4)] == [{}, {}, {"OMP_WAIT_POLICY": "PASSIVE"}]
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert workers.environment(4) == {}, "a value set by the user stays"


def test_batched_fetch_applies_to_datasets_of_arrays(tmp_path: Path) -> None:
    source = tmp_path / "data.py"
    methods = "def __getitem__(self, i):\n  return self.x[i]\n", "def __getitem__(self, i):\n  return f(i)\n"
    source.write_text("".join(methods))

    def answer(line: int, **facts: Any) -> Any:
        site = Site(str(source), line, "")
        return batched_fetch.applies(seen(collate_name="default_collate", getitem_site=site, **facts))

    assert answer(3, dataset_name="TensorDataset").is_yes and answer(1, dataset_name="A").is_yes
    assert "one by one" in answer(3, dataset_name="A").reason
    assert "made by pad, not by torch's" in batched_fetch.applies(seen(collate_name="pad")).reason
