import msgspec

from slipstream.memory.remedies import list_remedies
from slipstream.records import Footprint, ModuleBytes
from slipstream.testing.made_sessions import made_footprint


def test_temporary_memory_of_an_optimizer_is_not_halved_with_the_batch() -> None:
    footprint = made_footprint(32, 100_000)
    update = {**footprint.kinds, "activations": 0, "temporary": 6_000_000}
    phases = {"forward": footprint.kinds, "optimizer": update}
    at_update = msgspec.structs.replace(footprint, kinds=update, phases=phases, peak_bytes=sum(update.values()))
    assert "micro_batches" not in [remedy.name for remedy in list_remedies(at_update)]
    large = made_footprint(32, 30_000_000)
    assert "micro_batches" in [remedy.name for remedy in list_remedies(large)]


def names(footprint: Footprint) -> list[str]:
    return [remedy.name for remedy in list_remedies(footprint)]


def test_no_remedy_is_listed_if_its_technique_declines() -> None:
    plain = made_footprint(32, 30_000_000)
    normed = ModuleBytes("features.1", "BatchNorm2d", {"parameters": 512})
    assert "micro_batches" not in names(msgspec.structs.replace(plain, modules=[*plain.modules, normed]))
    assert "low_memory_optimizer" not in names(plain) and "offload_optimizer" not in names(plain), "on the CPU"


def test_offloaded_optimizer_state_is_on_the_device_during_the_update() -> None:
    plain = made_footprint(32, 100_000)
    state = {**plain.kinds, "optimizer_state": 9_000_000}
    made = msgspec.structs.replace(
        plain, device="cuda:0", kinds=state, phases={"backward": state}, peak_bytes=sum(state.values())
    )
    assert {"low_memory_optimizer", "offload_optimizer"} <= set(names(made))
    at_update = msgspec.structs.replace(made, phases={"backward": plain.kinds, "optimizer": state})
    assert "offload_optimizer" not in names(at_update) and "low_memory_optimizer" in names(at_update)
