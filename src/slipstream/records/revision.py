"""Where the user's source stood in git when a session began."""

from __future__ import annotations

import msgspec


class Revision(msgspec.Struct, frozen=True):
    commit: str  # in full
    is_changed: bool = False  # files that git knows differed from it

    def __str__(self) -> str:
        return self.commit[:9] + ("+" if self.is_changed else "")
