"""No technique ends a training that plain Python finishes, whatever its samples, buffers, parameters, arguments and
results are: types unknown to NumPy, tensors without rows, objects that cannot be compared or examined."""

from __future__ import annotations

import functools
import importlib
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from slipstream.records import Choice, Recipe
from slipstream.techniques._core.catalogue import catalogue, technique
from slipstream.testing.technique_contract import RecipeRun

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # most of these types are experimental in torch

NUM = 8
NUMBERS = torch.arange(NUM * 6.0).reshape(NUM, 6)


class Uncomparable:
    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        raise TypeError("cannot be compared")

    __hash__ = None  # type: ignore[assignment]


class Vague(Uncomparable):
    """Behaves like a NumPy array: the comparison of two objects has no single result."""

    def __eq__(self, other: object) -> Any:
        return np.array([True, False])

    __hash__ = None  # type: ignore[assignment]


class Lazy:
    """Behaves like an object that loads itself when an attribute is read."""

    __slots__ = ("content",)

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("the object is not loaded")


class Closed:
    """Behaves like a closed handle: reading an attribute raises, even reading its class."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("the handle is closed")


class Owner:
    pass


def make_dead_proxy() -> Any:
    return weakref.proxy(Owner())


class Subclass(torch.Tensor):
    pass


def make_nested(number: int) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.full((3,), float(number))], layout=torch.strided)


def make_in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return NUMBERS.clone()


TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "float32": NUMBERS.clone,
    "float16": NUMBERS.half,
    "bfloat16": NUMBERS.bfloat16,
    "float8_e4m3fn": lambda: NUMBERS.to(torch.float8_e4m3fn),
    "float8_e5m2": lambda: NUMBERS.to(torch.float8_e5m2),
    "complex64": lambda: NUMBERS.to(torch.complex64),
    "complex32": lambda: NUMBERS.to(torch.complex32),
    "uint16": lambda: NUMBERS.to(torch.uint16),
    "bool": lambda: NUMBERS > 3,
    "nan": lambda: torch.full((NUM, 6), float("nan")),
    "requires_grad": lambda: NUMBERS.clone().requires_grad_(),
    "conjugated": lambda: NUMBERS.to(torch.complex64).conj(),
    "negated": lambda: torch.complex(NUMBERS, NUMBERS).conj().imag,
    "quantised": lambda: torch.quantize_per_tensor(NUMBERS, 0.5, 0, torch.qint8),
    "sparse": NUMBERS.to_sparse,
    "sparse_csr": NUMBERS.to_sparse_csr,
    "subclass": lambda: NUMBERS.as_subclass(Subclass),
    "empty": lambda: NUMBERS[:, :0],
    "scalars": lambda: NUMBERS[:, 0],
    "inference": make_in_inference_mode,
    "meta": lambda: NUMBERS.to("meta"),
}
if hasattr(torch.Tensor, "rename"):  # torch 2.13 has no named tensors any more
    TENSORS["named"] = lambda: NUMBERS.rename("N", "C")

LISTS: dict[str, Callable[[], Any]] = {
    "nested": lambda: [make_nested(number) for number in range(NUM)],
    "uncomparable": lambda: [Uncomparable(number) for number in range(NUM)],
    "vague": lambda: [Vague(number) for number in range(NUM)],
    "vague_inside": lambda: [{"x": NUMBERS[number], "y": Vague(number)} for number in range(NUM)],
    "ragged": lambda: [NUMBERS[number, : 1 + number % 3] for number in range(NUM)],
    "strings": lambda: [f"sample {number}" for number in range(NUM)],
    "structured": lambda: np.zeros(NUM, dtype=[("x", "f4"), ("y", "i4")]),
    "dates": lambda: np.arange(NUM).astype("datetime64[D]"),
}


class Indexed(Dataset[Any]):
    """Its `__getitem__` only indexes, which `batched_fetch` looks for."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, index: int) -> Any:
        return self.data[index]


def as_they_are(samples: list[Any]) -> list[Any]:
    return samples


def describe(thing: Any) -> Any:
    """Returns everything that a script could observe about a batch, as text."""
    if isinstance(thing, torch.Tensor):
        flags = (type(thing).__name__, thing.dtype, thing.layout, thing.requires_grad, thing.is_conj(), thing.is_neg())
        is_shown = not thing.is_meta
        values = repr(thing.detach().float() if thing.dtype.itemsize == 1 and thing.is_floating_point() else thing)
        return f"{flags} {values if is_shown else tuple(thing.shape)}"
    if isinstance(thing, dict):
        return {key: describe(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return type(thing).__name__, [describe(one) for one in thing]
    return thing.number if isinstance(thing, Uncomparable) else repr(thing)


def train_on(dataset: Dataset[Any], collate: Any, num_workers: int, second: Any = None) -> list[Any]:
    """Trains for two epochs. Returns the batches and the losses. `second` replaces the data before the second epoch."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen: list[Any] = []
    loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=num_workers, collate_fn=collate)
    for epoch in range(2):
        if epoch and second is not None:
            dataset.data = second  # type: ignore[attr-defined]
        for batch in loader:
            loss = model(torch.ones(4, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += [describe(batch), loss.item()]
    return seen


def answer(run: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "", run()
    except Exception as fault:
        return f"{type(fault).__name__}: {fault}", None


_plain: dict[Any, tuple[str, Any]] = {}  # results of plain Python, computed once for all techniques


def check(ident: str, run: Callable[[], Any], key: Any = None) -> bool:
    """Returns whether plain Python finishes. If so, the run with the technique must finish too, and change nothing if
    its numerics class is identical."""
    fault, wanted = _plain[key] if key in _plain else answer(run)
    if key is not None:
        _plain[key] = fault, wanted
    if fault:
        return False
    module = technique(ident)
    recipe_run = RecipeRun(Recipe((Choice(ident, getattr(module, "VALUES", (True,))[0]),)))
    fault, found = answer(lambda: recipe_run.run(run))
    assert not fault, fault
    assert not recipe_run.leftovers
    if module.CARD.numerics == "identical":
        assert found == wanted
    return True


def names(*seams: str, other: bool = False) -> list[str]:
    """Returns the techniques of these seams, or of all other seams. Compiling is slow and has its own tests."""
    return sorted(
        ident for ident in catalogue() if ident != "compile" and (technique(ident).CARD.seam in seams) is not other
    )


@pytest.mark.parametrize("ident", names("loader", "transfer"))
def test_samples(ident: str) -> None:
    finished = set()
    for kind, make in {**TENSORS, **LISTS}.items():
        for collate in (None, as_they_are):
            run = functools.partial(lambda make, collate: train_on(Indexed(make()), collate, 0), make, collate)
            if check(ident, run, (kind, collate)):
                finished.add(kind)
        if kind in TENSORS:
            run = functools.partial(lambda make: train_on(TensorDataset(make()), None, 0), make)
            check(ident, run, (kind, TensorDataset))
    assert finished >= {*TENSORS, *LISTS} - {"sparse_csr"}, "plain Python trains on them"


WITH_WORKERS = [
    "batched_fetch",
    "buffer_reuse",
    "byte_transfer",
    "persistent_workers",
    "sample_cache",
    "thread_workers",
]


@pytest.mark.parametrize("ident", WITH_WORKERS)
@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "complex32", "nan", "inference", "vague"])
def test_samples_of_workers(ident: str, kind: str) -> None:
    make, collate = (TENSORS[kind], None) if kind in TENSORS else (LISTS[kind], as_they_are)
    assert check(ident, lambda: train_on(Indexed(make()), collate, 2))


@pytest.mark.parametrize("kind", [*TENSORS])
@pytest.mark.parametrize("ident", ["batched_fetch", "sample_cache", "thread_workers"])
def test_data_that_changes_between_epochs(ident: str, kind: str) -> None:
    """A check that passed in the first epoch no longer holds in the second."""
    check(ident, lambda: train_on(Indexed(NUMBERS.clone()), None, 0, second=TENSORS[kind]()))


# --- datasets -------------------------------------------------------------------------------------------------------


class Made(Indexed):
    """Its samples are computed."""

    def __getitem__(self, index: int) -> Any:
        row = self.data[index]
        return torch.stack([row, -row])


ODD: dict[str, Callable[[], Any]] = {"dead proxy": make_dead_proxy, "lazy": Lazy, "closed": Closed}


def train_beside(odd: Callable[[], Any], kind: type[Indexed], num_workers: int) -> list[Any]:
    dataset = kind(NUMBERS.clone())
    dataset.owner = odd()  # type: ignore[attr-defined]
    return train_on(dataset, None, num_workers)


@pytest.mark.parametrize("name", [*ODD])
@pytest.mark.parametrize("ident", names("loader", "transfer"))
def test_objects_of_a_dataset(ident: str, name: str) -> None:
    for kind in (Indexed, Made):
        assert check(ident, functools.partial(train_beside, ODD[name], kind, 0), (name, kind))


@pytest.mark.parametrize("name", [*ODD])
@pytest.mark.parametrize("ident", WITH_WORKERS)
def test_objects_of_a_dataset_of_workers(ident: str, name: str) -> None:
    assert check(ident, functools.partial(train_beside, ODD[name], Made, 1), (name, "workers"))


class Noisy:
    """An array that is read with noise."""

    def __getitem__(self, index: Any) -> torch.Tensor:
        return NUMBERS[index] + torch.rand(())


@pytest.mark.parametrize("ident", names("loader", "transfer"))
def test_random_numbers_of_the_samples(ident: str) -> None:
    assert check(ident, lambda: train_on(Indexed(Noisy()), None, 0), "noise")


OWN_PACKAGE = """
class Photos:
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]

class Formatted(Photos):
    format = "jpg"

class Unready(Photos):
    @property
    def format(self):
        raise RuntimeError("no format yet")

    @property
    def column_names(self):
        raise RuntimeError("no columns yet")
"""


@pytest.mark.parametrize("ident", names("loader", "transfer"))
def test_a_package_that_is_called_datasets(ident: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "__init__.py").touch()
    (tmp_path / "datasets" / "photos.py").write_text(OWN_PACKAGE)
    for name in [name for name in sys.modules if name.partition(".")[0] == "datasets"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    photos = importlib.import_module("datasets.photos")
    try:
        for kind in (photos.Formatted, photos.Unready):
            assert check(ident, lambda kind=kind: train_on(kind(NUMBERS), None, 0))  # type: ignore[misc]
    finally:
        del sys.modules["datasets"], sys.modules["datasets.photos"]


class Frames(Indexed):
    """Its transform is written for one image and is mapped over two."""

    def __getitem__(self, index: int) -> Any:
        frames = self.data[index].expand(2, 40, 40, 3).clone()
        return torch.func.vmap(lambda frame: frame.permute(2, 0, 1).contiguous())(frames)


@pytest.mark.parametrize("ident", [*WITH_WORKERS, "fast_arrays"])
def test_a_transform_that_is_mapped(ident: str) -> None:
    data = torch.arange(NUM, dtype=torch.uint8).reshape(NUM, 1, 1, 1)
    assert check(ident, lambda: train_on(Frames(data), None, 1), "frames")


# --- models -----------------------------------------------------------------------------------------------------------

PLACES = ("buffer", "parameter", "attribute", "argument", "first argument", "result")


class Block(nn.Module):
    def __init__(self, odd: Any, place: str) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)
        if place == "buffer":
            self.register_buffer("odd", odd)
        elif place == "parameter":
            self.odd = nn.Parameter(odd, requires_grad=False)
        elif place == "attribute":
            self.odd = odd

    def forward(self, x: torch.Tensor, odd: Any = None) -> Any:
        weights = functional.softmax(self.linear(x) @ x.transpose(-2, -1) / 4, -1)
        return self.norm(x + weights @ x)


class Net(nn.Module):
    """Has repeated blocks, a convolution and hand-written attention, so that every technique has something to
    change."""

    def __init__(self, odd: Any, place: str) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(16, 2)
        self.blocks = nn.ModuleList(Block(odd, place) for _ in range(4))

    def forward(self, x: Any, odd: Any = None, result: Any = None) -> Any:
        images = x[-1] if isinstance(x, tuple) else x
        hidden = self.conv(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            hidden = block(hidden) if odd is None else block(hidden, odd)
        scores = self.head(hidden.mean(1))
        return scores if result is None else (scores, result)


def train_net(odd: Any, place: str) -> list[float]:
    torch.manual_seed(0)
    net = Net(odd, place)
    optimizer = torch.optim.AdamW([one for one in net.parameters() if one.requires_grad], 0.01)
    losses = []
    for _ in range(3):
        images, labels = torch.randn(4, 3, 5, 5), torch.tensor([0, 1, 0, 1])
        given = (odd, images) if place == "first argument" else images
        found = net(given, **({"odd": odd} if place == "argument" else {"result": odd} if place == "result" else {}))
        loss = functional.cross_entropy(found[0] if place == "result" else found, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("ident", names("loader", "transfer", other=True))
def test_models(ident: str) -> None:
    odd = {kind: make().detach() for kind, make in TENSORS.items()}
    odd |= {"nested": make_nested(1), "uncomparable": Uncomparable(1), "vague": Vague(1)}  # type: ignore[dict-item]
    for kind, value in odd.items():
        for place in PLACES if isinstance(value, torch.Tensor) else PLACES[2:]:
            assert check(ident, functools.partial(train_net, value, place), (kind, place))
