"""Sessions at a glance: what the index keeps of each, so that thousands can be listed without opening one."""

from __future__ import annotations

import msgspec

from slipstream.records.environment import Revision
from slipstream.records.recipe import Recipe


class IndexEntry(msgspec.Struct, frozen=True):
    """A row of the index. One that is not readable has only its file."""

    name: str  # of the file, without its suffix: what the user calls the session by
    size_bytes: int
    modified_ns: int
    is_readable: bool = True
    created: str = ""  # ISO 8601
    command: str = ""
    script: str = ""  # the words, each quoted where a shell would need it
    commit: str = ""
    is_changed: bool = False
    num_steps: int = 0
    step_ms: float | None = None
    samples_per_s: float | None = None
    bound: str = ""
    recipe: str = ""  # kept by a tune
    ratio: float | None = None  # the recipe against the base
    ratio_low: float | None = None
    ratio_high: float | None = None
    peak_bytes: int | None = None  # of the step that `memory` observed
    largest_batch: int | None = None  # that `tune --fit` found to run


class GlanceSpeed(msgspec.Struct, frozen=True):
    ratio: float
    low: float
    high: float


class GlanceTuning(msgspec.Struct, frozen=True):
    recipe: Recipe = Recipe()
    total: GlanceSpeed | None = None


class GlanceFootprint(msgspec.Struct, frozen=True):
    peak_bytes: int


class GlanceFitting(msgspec.Struct, frozen=True):
    recipe: Recipe = Recipe()
    largest: int | None = None


class GlanceSummary(msgspec.Struct, frozen=True):
    num_steps: int
    step_ms: float
    samples_per_s: float
    bound: str


class SessionGlance(msgspec.Struct, frozen=True):
    """The same file as a Session, read for these few fields alone: a hundred times quicker."""

    command: str
    script: list[str]
    created: str
    revision: Revision | None = None
    summary: GlanceSummary | None = None
    tuning: GlanceTuning | None = None
    fitting: GlanceFitting | None = None
    footprints: list[GlanceFootprint] = []
