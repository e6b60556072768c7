"""The objects of the user's script that pass through seams: loaders, models, optimizers.
Facts read once, when an object is first met."""

from __future__ import annotations

import msgspec

from slipstream.records.site import Site


class Loader(msgspec.Struct, frozen=True, rename={"container": "hoard"}):
    ident: int
    site: Site | None  # the user's line that built it
    class_name: str
    dataset_name: str
    num_workers: int
    batch_size: int | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory: bool
    is_iterable: bool
    num_batches: int | None  # len(loader), None where it has none or lies (samplers of length 1e10)
    num_samples: int | None
    start_method: str  # fork, spawn, forkserver; "" without workers
    collate_name: str = "default_collate"
    collate_site: Site | None = None
    getitem_site: Site | None = None  # where the dataset's __getitem__ or __iter__ is defined, if the user's
    tensor_facts: list[TensorFacts] = []
    framework: str = ""  # "transformers", "lightning", "accelerate" where one of them built it
    container: LargeContainer | None = None  # looked for where there are workers
    draws: bool | None = None  # random numbers, in building some of its batches without workers; None: not looked at


class LargeContainer(msgspec.Struct, frozen=True):
    """A container of the dataset's with very many Python objects. Reading one writes its reference count."""

    name: str  # "names", "dataset.samples"
    kind: str  # of the container
    element: str  # of what it holds
    num_objects: int
    num_bytes: int  # about


class TensorFacts(msgspec.Struct, frozen=True):
    """A tensor of the first batch, or of the model's input."""

    path: str  # "[0]", "['pixel_values']"
    shape: list[int]
    dtype: str
    device: str
    num_bytes: int
    was_bytes: bool = False  # floats that hold at most 256 different values per channel: bytes would do


class Model(msgspec.Struct, frozen=True):
    ident: int
    class_name: str
    site: Site | None  # the user's line that first called it
    num_parameters: int
    parameter_bytes: int
    dtypes: list[str]
    device: str
    is_compiled: bool
    num_modules: int
    num_convolutions: int = 0
    is_channels_last: bool = False
    inputs: list[TensorFacts] = []
    name: str = ""  # what the line that called it calls it: "model", "self.net"; "": not known
    class_module: str = ""  # where its class is defined
    num_planar: int | None = None  # of the convolutions, those of images, two-dimensional; None: not looked at
    moves_alone: bool = True  # model.to(memory_format=...) reaches weights and buffers of at most four dimensions


class Optimizer(msgspec.Struct, frozen=True):
    ident: int
    class_name: str
    site: Site | None
    num_tensors: int
    num_parameters: int
    fused: bool | None  # what the script asked for; None: torch's default
    foreach: bool | None
    can_fuse: bool  # this class and device have a fused implementation
    device: str
    step_site: Site | None = None  # where the user's own class defines its update; None: a library's
