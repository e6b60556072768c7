"""The time budget of a tuning, measured with the backend's clock, and the shares of it that are reserved for later
phases."""

from __future__ import annotations

from slipstream.wire.backend import RaceBackend

# Shares of the budget. The final race of the whole recipe against the base always gets its share, because the user is
# shown its result.
TOTAL_SHARE = 0.25
COMBINING_SHARE = 0.2
CLIMBING_SHARE = 0.1
PROVING_SHARE = 0.15  # for proving techniques that were kept provisionally
HOPE_SHARE = 0.4  # if nothing has won: for proving the most promising candidate


class Budget:
    def __init__(self, backend: RaceBackend, budget_s: float) -> None:
        self._backend = backend
        self._start_s = backend.now_s()
        self.budget_s = budget_s

    def now_s(self) -> float:
        return self._backend.now_s()

    def spent_s(self) -> float:
        return self.now_s() - self._start_s

    def left_s(self) -> float:
        return max(0.0, self.budget_s - self.spent_s())

    def ahead_s(self, kept_back: float) -> float:
        """The time at which only this share of the remaining budget will be left."""
        return self.now_s() + self.left_s() * (1.0 - kept_back)

    def moment_s(self, kept_back: float) -> float:
        """The time at which only this share of the whole budget will be left."""
        return self._start_s + self.budget_s * (1.0 - kept_back)


def share_kept_back(num_winners: int, num_climbing: int, num_provisional: int) -> float:
    """The share to reserve during the single races. Time for combining, climbing and proving is reserved only if there
    is something to combine, to climb or to prove."""
    combining = COMBINING_SHARE if num_winners > 1 else 0.0
    climbing = CLIMBING_SHARE if num_climbing else 0.0
    proving = PROVING_SHARE if num_provisional else 0.0
    return TOTAL_SHARE + combining + climbing + proving if num_winners or num_provisional else 0.0
