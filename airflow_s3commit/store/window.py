"""How many calls under way at once bring the most answers a second: found by trying.

A window twice as wide is tried against the one that is kept, in turns of a few rounds each, and kept in its
stead if it brings enough more; so is, where it brings as many, one half as wide. Side by side, because the
speed of a machine or a store may double between one second and the next, whatever the window. TCP's
congestion control BBR looks for the width of a pipe in a like way, but can rely on packets that cost it
nothing: here each call costs processor time, and the more of it the more connections there are to look
through.

Where answers take their time twice the calls bring twice the answers. That is seen in the first round, and
the window doubles with every round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean

__all__ = ["FIRST_WINDOW", "Window"]

#: Calls under way at once before the store has answered any. Fewer are never tried: from here on the calls
#: that are ready together pay for looking which ones are.
FIRST_WINDOW = 32

#: What part of the answers that a wider window could bring it has to.
WORTHWHILE = 0.2

#: The same, seen in a single round.
CLEARLY_WORTHWHILE = 0.7

#: A narrower window is kept if it brings at least this many times the answers a second.
AS_MANY = 0.95

#: A narrower window is given up after a single round that brought fewer times the answers than this.
CLEARLY_FEWER = 0.75

#: Rounds in which each of two windows is measured.
ROUNDS = 4

#: Seconds after which another window is tried again: a wider one and a narrower one by turns.
PROBE_SECONDS = 2.0


@dataclass(slots=True)
class _Trial:
    """Two windows side by side, and the answers a second that each brought in its rounds."""

    kept: int
    other: int
    of_kept: list[float]
    of_other: list[float] = field(default_factory=list)

    def at_a_glance(self, rate: float) -> bool | None:
        """Tell whether one round of the other window says whether to keep it; None if it says nothing."""
        if self.other > self.kept:
            gain = rate / max(self.of_kept)
            return True if gain >= 1 + CLEARLY_WORTHWHILE * (self.other / self.kept - 1) else None
        return False if rate < CLEARLY_FEWER * fmean(self.of_kept) else None

    def verdict(self) -> bool | None:
        """Tell whether to keep the other window; None as long as that is not known."""
        if len(self.of_other) < ROUNDS:
            return None
        gain = fmean(self.of_other) / fmean(self.of_kept)
        return gain >= (1 + WORTHWHILE * (self.other / self.kept - 1) if self.other > self.kept else AS_MANY)


class Window:
    """A number of calls under way at once, changed as rounds of them end.

    Args:
        most: The widest it may be.

    Attributes:
        width: How many there may be now.

    """

    def __init__(self, most: int) -> None:
        self.width = min(FIRST_WINDOW, most)
        self._most = most
        self._trial: _Trial | None = None
        self._due = -math.inf
        self._widens = True
        # Not in the first round, in which connections are made, nor in one after a change: calls of the
        # other window still end in it.
        self._is_settled = False

    def round_ended(self, rate: float, now: float) -> None:
        """Take note of a round in which the window was full.

        Args:
            rate: Answers a second.
            now: The time, in seconds of any clock that only moves on.

        """
        trial, was_settled = self._trial, self._is_settled
        self._is_settled = True
        if trial is None:
            if was_settled and now >= self._due:
                self._try_another(rate, now)
            return
        is_of_other = self.width == trial.other
        if was_settled:
            (trial.of_other if is_of_other else trial.of_kept).append(rate)
        # The first round of a wider window has too few answers, if anything; that of a narrower one too many.
        verdict = trial.at_a_glance(rate) if is_of_other else None
        if verdict is None:
            verdict = trial.verdict()
        if verdict:
            self._become(trial.other)
            self._try_another(rate, now)
        elif verdict is False:
            self._rest(trial.kept, now)
        elif was_settled:
            self._become(trial.kept if is_of_other else trial.other)

    def _try_another(self, rate: float, now: float) -> None:
        """Begin to compare the window, which brings this many answers a second, with the next one."""
        width = self.width
        other = min(2 * width, self._most) if self._widens else max(width // 2, min(FIRST_WINDOW, width))
        if other == width:
            self._rest(width, now)
        else:
            self._trial = _Trial(width, other, [rate])
            self._become(other)

    def _rest(self, width: int, now: float) -> None:
        """Keep a window for a while; then look the other way."""
        self._trial, self._due = None, now + PROBE_SECONDS
        self._widens = not self._widens
        self._become(width)

    def _become(self, width: int) -> None:
        self._is_settled = self._is_settled and width == self.width
        self.width = width
