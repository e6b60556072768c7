import msgspec

from slipstream.memory.remedies import list_remedies
from slipstream.testing.sessions import made_footprint


def test_what_an_optimizer_takes_for_a_moment_is_not_halved_with_the_batch() -> None:
    footprint = made_footprint(32, 100_000)
    update = {**footprint.kinds, "activations": 0, "temporary": 6_000_000}
    phases = {"forward": footprint.kinds, "optimizer": update}
    at_update = msgspec.structs.replace(footprint, kinds=update, phases=phases, peak_bytes=sum(update.values()))
    assert "micro_batches" not in [remedy.name for remedy in list_remedies(at_update)]
    large = made_footprint(32, 30_000_000)
    assert "micro_batches" in [remedy.name for remedy in list_remedies(large)]
