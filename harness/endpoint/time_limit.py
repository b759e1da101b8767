"""How long one request may take, by how fast this server has generated so far."""

from __future__ import annotations

from collections import deque
from statistics import quantiles

LEAST_SEC = 600.0
"""For the server's queue and the prompt, however short the reply."""
LONGEST_SEC = 4 * 3600.0
"""A server that hangs answers its other paths, so that nothing but this ends a request to it."""
_MARGIN = 3.0
"""How much slower a reply may be than nearly all before it: a server slows down as more trials begin."""
_UNKNOWN_PACE, _FASTEST_PACE = 15.0, 50.0
"""Tokens per second and request: before enough replies were seen, and at most, since replies may come from a cache."""
_ENOUGH, _LATEST = 16, 128
_SHORTEST_TOKENS = 64
"""Replies below this take the time of their prompt."""


class TimeLimit:
    """The time limit of the requests to one server; without a `fixed_sec`, by the pace of its replies so far."""

    def __init__(self, fixed_sec: float | None) -> None:
        self.is_fixed = fixed_sec is not None
        self.longest_sec = fixed_sec if fixed_sec is not None else LONGEST_SEC
        self.least_sec = min(LEAST_SEC, self.longest_sec)
        """Of a request that generates nothing."""
        self._sec_per_token: deque[float] = deque(maxlen=_LATEST)

    def saw(self, tokens: int, seconds: float) -> None:
        """Note how long a reply took, the queue included."""
        if tokens >= _SHORTEST_TOKENS:
            self._sec_per_token.append(seconds / tokens)

    def of(self, max_tokens: int, times_cut: int = 0) -> float:
        """Seconds for a request; for one that was cut before, twice as many, as it most likely takes as long again."""
        if self.is_fixed:
            return self.longest_sec
        seconds = LEAST_SEC + _MARGIN * max_tokens * self._slow_sec_per_token()
        return float(min(seconds * 2**times_cut, LONGEST_SEC))

    def _slow_sec_per_token(self) -> float:
        seen = self._sec_per_token
        if len(seen) < _ENOUGH:
            return max(1 / _UNKNOWN_PACE, *seen) if seen else 1 / _UNKNOWN_PACE
        return max(1 / _FASTEST_PACE, quantiles(seen, n=10)[-1])
