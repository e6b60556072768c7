"""The fields of a session that the index stores, so that thousands of sessions can be listed without opening them."""

from __future__ import annotations

import msgspec

from slipstream.records.environment import Revision
from slipstream.records.recipe import Recipe


class IndexEntry(msgspec.Struct, frozen=True):
    """A row of the index. For a session that is not readable only the fields about its file are set."""

    name: str  # name of the file without its suffix, by which the user refers to the session
    size_bytes: int
    modified_ns: int
    is_readable: bool = True
    created: str = ""  # ISO 8601
    command: str = ""
    script: str = ""  # the command line, quoted as for a shell
    commit: str = ""
    is_changed: bool = False
    num_steps: int = 0
    num_undisturbed: int | None = None  # None: the session is of an older version, which did not count these steps
    step_ms: float | None = None  # median step of the check; for a tuning, the base step of the races
    samples_per_s: float | None = None
    bound: str = ""
    recipe: str = ""  # the recipe that `tune` kept
    ratio: float | None = None  # speed of the recipe relative to the base
    ratio_low: float | None = None
    ratio_high: float | None = None
    peak_bytes: int | None = None  # peak of the step that the command `memory` observed
    largest_batch: int | None = None  # the largest batch that `tune --fit` found


class GlanceSpeed(msgspec.Struct, frozen=True):
    ratio: float
    low: float
    high: float


class GlanceTuning(msgspec.Struct, frozen=True):
    base_step_ms: float
    base_samples_per_s: float
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
    num_undisturbed: int | None = None


class SessionGlance(msgspec.Struct, frozen=True):
    """Some fields of Session. A session file is read a hundred times faster if only these fields are decoded."""

    command: str
    script: list[str]
    created: str
    revision: Revision | None = None
    summary: GlanceSummary | None = None
    tuning: GlanceTuning | None = None
    fitting: GlanceFitting | None = None
    footprints: list[GlanceFootprint] = []
