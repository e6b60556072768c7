"""Structures are taken apart and rebuilt as what they were."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from typing import Any

import pytest
import torch
from transformers import BatchEncoding
from transformers.modeling_outputs import BaseModelOutput

from slipstream.seams.nested import leaves_of, map_tensors, tensors_of, walk_tensors

Pair = namedtuple("Pair", "x y")
X, Y = torch.ones(2), torch.zeros(2)


class Listed(list[Any]):
    pass


class Named(dict[str, Any]):
    pass


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    name: str = "n"


@dataclasses.dataclass
class Slotted:
    __slots__ = ("x",)
    x: torch.Tensor


class Plain:
    def __init__(self) -> None:
        self.x = X


STRUCTURES: list[Any] = [
    [X, "a"],
    (X, None),
    {"x": X, "n": 1},
    OrderedDict(x=X),
    defaultdict(list, x=X),
    deque([X], maxlen=3),
    Pair(X, 1),
    Listed([X]),
    Named(x=X),
    UserDict(x=X),
    BatchEncoding({"x": X}),
    BaseModelOutput(last_hidden_state=X),
    Frozen(X),
    Slotted(X),
    torch.return_types.max((X, Y)),
]


@pytest.mark.parametrize("thing", STRUCTURES, ids=lambda thing: type(thing).__name__)
def test_container_keeps_its_type_and_the_original_its_tensors(thing: Any) -> None:
    changed = map_tensors([thing], lambda tensor: tensor + 1)[0]
    assert type(changed) is type(thing) and changed is not thing
    assert [float(tensor[0]) for tensor in tensors_of(changed)] == [float(t[0]) + 1 for t in tensors_of(thing)]
    assert tensors_of(thing)[0] is X and next(walk_tensors(thing))[1] is X
    others = [[leaf for leaf in leaves_of(one) if not isinstance(leaf, torch.Tensor)] for one in (thing, changed)]
    assert others[0] == others[1]


def test_attributes_that_follow_a_mapping_are_changed_too() -> None:
    assert map_tensors(BaseModelOutput(last_hidden_state=X), lambda tensor: Y).last_hidden_state is Y


def test_maxlen_and_default_are_kept() -> None:
    changed = map_tensors((deque([X], maxlen=3), defaultdict(list, x=X)), torch.neg)
    assert changed[0].maxlen == 3 and changed[1]["missing"] == []


@pytest.mark.parametrize("thing", STRUCTURES, ids=lambda thing: type(thing).__name__)
def test_structure_without_a_changed_tensor_is_the_same_object(thing: Any) -> None:
    assert map_tensors(thing, lambda tensor: tensor) is thing


def test_only_the_containers_around_a_changed_tensor_are_rebuilt() -> None:
    memory: list[Any] = [Y]
    changed = map_tensors((X, memory), lambda tensor: tensor + 1 if tensor is X else tensor)
    assert changed[1] is memory


def test_other_objects_are_walked_but_not_rebuilt() -> None:
    thing = Plain()
    assert [path for path, _ in walk_tensors([thing])] == ["[0].x"]
    assert map_tensors(thing, torch.neg) is thing and leaves_of(thing) == [thing]


def test_classes_registered_with_pytree_by_others_are_not_rebuilt() -> None:
    pytree: Any = torch.utils._pytree
    pytree.register_pytree_node(Plain, lambda thing: ([thing.x], None), lambda parts, context: Plain())
    try:
        thing = Plain()
        assert map_tensors(thing, torch.neg) is thing
    finally:
        pytree._deregister_pytree_node(Plain)


def test_container_that_contains_itself_ends() -> None:
    thing: list[Any] = [X]
    thing.append(thing)
    assert len(tensors_of(thing)) == len(tensors_of(map_tensors(thing, torch.neg))) > 1
    assert all(tensor is X for _, tensor in walk_tensors(thing))


def test_paths_name_the_tensors() -> None:
    batch = {"a": [X, Pair(X, Y)], "b": UserDict(c=Frozen(X))}
    assert [path for path, _ in walk_tensors(batch)] == ["['a'][0]", "['a'][1][0]", "['a'][1][1]", "['b']['c'].x"]


def test_long_sequence_is_walked_in_part() -> None:
    assert len(list(walk_tensors([X] * 100))) == 32 and len(tensors_of([X] * 100)) == 100
