from __future__ import annotations

from typing import Any

import pytest

from slipstream.seams.patching import Patches, Substitute


class Owner:
    def greet(self, name: str) -> str:
        if name == "nobody":
            raise LookupError(name)
        return f"hello {name}"


class Heir(Owner):
    pass


def make_patches() -> tuple[Patches, list[str]]:
    complaints: list[str] = []
    return Patches(lambda seam, fault: complaints.append(f"{seam}: {fault}"), lambda: False), complaints


def nothing(*_: Any) -> None:
    return None


def test_callbacks_see_the_passage_and_closing_restores() -> None:
    seen: list[Any] = []
    original = Owner.__dict__["greet"]
    patches, _ = make_patches()
    patches.around(Owner, "greet", "owner", lambda args, kwargs: args[1], lambda *told: seen.append(told[::3]))
    assert Owner().greet("you") == "hello you"
    assert seen == [("you", "hello you")]
    patches.close()
    assert Owner.__dict__["greet"] is original


def test_an_inherited_attribute_is_inherited_again() -> None:
    patches, _ = make_patches()
    patches.around(Heir, "greet", "heir", nothing, nothing)
    assert "greet" in vars(Heir)
    patches.close()
    assert "greet" not in vars(Heir)


@pytest.mark.parametrize("broken", ["before", "after"])
def test_fault_of_a_callback_is_reported_once_and_the_original_still_runs(broken: str) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("ours")

    patches, complaints = make_patches()
    before, after = (fail, nothing) if broken == "before" else (nothing, fail)
    patches.around(Owner, "greet", "owner", before, after)
    assert [Owner().greet("you") for _ in range(3)] == ["hello you"] * 3
    assert complaints == ["owner: ours"]
    patches.close()


def test_exception_of_the_script_propagates_and_the_passage_is_abandoned() -> None:
    abandoned: list[Any] = []
    patches, complaints = make_patches()
    patches.around(Owner, "greet", "owner", lambda args, kwargs: "token", nothing, abandoned.append)
    with pytest.raises(LookupError):
        Owner().greet("nobody")
    assert abandoned == ["token"] and not complaints
    patches.close()


def test_substitute_replaces_the_result_of_the_original() -> None:
    patches, _ = make_patches()
    patches.around(Owner, "greet", "owner", lambda args, kwargs: Substitute("kept"), nothing)
    assert Owner().greet("you") == "kept"
    patches.close()


def test_later_patch_of_other_code_is_left_in_place() -> None:
    original = Owner.__dict__["greet"]
    patches, _ = make_patches()
    patches.around(Owner, "greet", "owner", nothing, nothing)
    Owner.greet = theirs = lambda self, name: "theirs"  # type: ignore[assignment,method-assign]
    patches.close()
    assert Owner.__dict__["greet"] is theirs
    assert patches.leftovers == ["Owner.greet"]
    Owner.greet = original  # type: ignore[method-assign]


def test_dynamo_traces_only_the_original() -> None:
    patches = Patches(lambda seam, fault: None, lambda: True)
    patches.around(Owner, "greet", "owner", lambda args, kwargs: Substitute("ours"), nothing)
    assert Owner().greet("you") == "hello you"
    patches.close()
