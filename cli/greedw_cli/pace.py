"""The pace of a job: how long a round takes, and so how long the rest will."""

from collections import deque
from typing import Final

_WINDOW_S: Final = 10.0
"""What counts as the present pace; older samples no longer say how the links are now."""


class Pace:
    """Rounds against time, from looking at a job now and then.

    Looking sees only some rounds end. Between two looks that differ, each round counts as an
    equal part of the time; the median weighs every round once.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._spans: list[tuple[float, int]] = []
        """(seconds per round, rounds) of each pair of looks that saw progress."""

    def look(self, round_number: int, now_s: float) -> None:
        """Note how many rounds are done at a moment."""
        if self._seen:
            last_s, last_round = self._seen[-1]
            if round_number <= last_round:
                return
            rounds = round_number - last_round
            self._spans.append(((now_s - last_s) / rounds, rounds))
        self._seen.append((now_s, round_number))
        while len(self._seen) > 2 and self._seen[0][0] < now_s - _WINDOW_S:
            self._seen.popleft()

    def pause(self) -> None:
        """Forget the present pace: the time until the next look is not a round's."""
        self._seen.clear()

    def rounds_per_second(self) -> float | None:
        """Return the present pace, None before two looks differed."""
        if len(self._seen) < 2:
            return None
        (first_s, first_round), (last_s, last_round) = self._seen[0], self._seen[-1]
        return (last_round - first_round) / max(last_s - first_s, 1e-9)

    def seconds_left(self, rounds: int) -> float | None:
        """Return how long ``rounds`` more take at the present pace."""
        pace = self.rounds_per_second()
        return None if pace is None else rounds / pace

    def round_ms_median(self) -> float | None:
        """Return the median time of a round in milliseconds over everything seen."""
        spans = sorted(self._spans)
        half = sum(rounds for _, rounds in spans) / 2
        counted = 0
        for seconds, rounds in spans:
            counted += rounds
            if counted >= half:
                return 1000 * seconds
        return None
