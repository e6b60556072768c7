"""The time a tuning may take, by the track's clock, and how much of it is kept back for what is still to come."""

from __future__ import annotations

from slipstream.wire.backend import RaceBackend

# Shares of the budget. The whole recipe against the base is what the user is promised: it always gets its share.
TOTAL_SHARE = 0.25
COMBINING_SHARE = 0.2
CLIMBING_SHARE = 0.1
PROVING_SHARE = 0.15  # what was built on before it was decided has yet to be proved
HOPE_SHARE = 0.4  # where nothing has won: for a proof of what looks best


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
        """When only this share of what is left now will be left."""
        return self.now_s() + self.left_s() * (1.0 - kept_back)

    def moment_s(self, kept_back: float) -> float:
        """When only this share of the budget is left."""
        return self._start_s + self.budget_s * (1.0 - kept_back)


def share_kept_back(num_winners: int, num_climbing: int, num_provisional: int) -> float:
    """While techniques still race alone: nothing to combine or to prove needs no time for it."""
    combining = COMBINING_SHARE if num_winners > 1 else 0.0
    climbing = CLIMBING_SHARE if num_climbing else 0.0
    proving = PROVING_SHARE if num_provisional else 0.0
    return TOTAL_SHARE + combining + climbing + proving if num_winners or num_provisional else 0.0
