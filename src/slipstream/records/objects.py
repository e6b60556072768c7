"""Facts about the script's objects that seams see: loaders, models, optimizers. The facts are read when an object is
first used."""

from __future__ import annotations

import msgspec

from slipstream.records.site import Site


class Trainer(msgspec.Struct, frozen=True):
    """The object of a framework that runs the training loop."""

    library: str  # "transformers", "lightning"
    class_name: str
    own_methods: list[str] = []  # methods of the library's class that the script's subclass replaces


class Loader(msgspec.Struct, frozen=True, rename={"container": "hoard"}):
    ident: int
    site: Site | None  # the user's line that created the loader
    class_name: str
    dataset_name: str
    num_workers: int
    batch_size: int | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory: bool
    is_iterable: bool
    num_batches: int | None  # len(loader); None: no length, or a false one (samplers of length 1e10)
    num_samples: int | None
    start_method: str  # fork, spawn, forkserver; "" without workers
    collate_name: str = "default_collate"
    collate_site: Site | None = None
    getitem_site: Site | None = None  # the dataset's __getitem__ or __iter__, if it is the user's code
    tensor_facts: list[TensorFacts] = []
    framework: str = ""  # "transformers", "lightning" or "accelerate" if this framework created the loader
    container: LargeContainer | None = None  # searched only for loaders with workers
    num_threads: int = 0  # threads of a slipstream.DataLoader, which it uses in place of workers
    draws: bool | None = None  # whether building a batch without workers draws random numbers; None: not checked


class LargeContainer(msgspec.Struct, frozen=True):
    """A container of the dataset with very many Python objects. Reading such an object writes its reference count."""

    name: str  # "names", "dataset.samples"
    kind: str  # type of the container
    element: str  # type of its elements
    num_objects: int
    num_bytes: int  # estimated size


class TensorFacts(msgspec.Struct, frozen=True):
    """A tensor of the first batch, or of the model's input."""

    path: str  # "[0]", "['pixel_values']"
    shape: list[int]
    dtype: str
    device: str
    num_bytes: int
    was_bytes: bool = False  # whether each channel has at most 256 different values, so that bytes suffice


class Model(msgspec.Struct, frozen=True):
    ident: int
    class_name: str
    site: Site | None  # the user's line that first called the model
    num_parameters: int
    parameter_bytes: int
    dtypes: list[str]
    device: str
    is_compiled: bool
    num_modules: int
    num_convolutions: int = 0
    is_channels_last: bool = False
    inputs: list[TensorFacts] = []
    name: str = ""  # the model's name in the line `site`: "model", "self.net"; "": not known
    class_module: str = ""  # the module that defines the model's class
    num_planar: int | None = None  # number of two-dimensional convolutions; None: not counted
    moves_alone: bool = True  # whether model.to() converts only parameters and buffers of at most four dimensions


class Optimizer(msgspec.Struct, frozen=True):
    ident: int
    class_name: str
    site: Site | None
    num_tensors: int
    num_parameters: int
    fused: bool | None  # the script's argument; None: torch's default
    foreach: bool | None
    can_fuse: bool  # whether torch has a fused implementation for this class and device
    device: str
    step_site: Site | None = None  # the update method of the user's own class; None: a library's class
