"""Finds the number of trials at once that a server can take: it grows in steps while there is room, and is cut at once.

AIMD on what vLLM says of its KV cache, its queue and its preemptions, with the thresholds of prime-rl's
ConcurrencyController (src/prime_rl/orchestrator/concurrency.py). A pure state machine: no clock, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tbench.pacing.load import ServerLoad

GROWTH, STRIDE = 1.25, 2.0
"""Growth per turnover near the aim, and at the most where there is more room than that."""
ROOMY, FULL, AIM = 0.6, 0.8, 0.7
"""KV usage below which it grows, above which it is trimmed, and to which."""
QUEUE_CUT, PREEMPTION_CUT = 0.9, 0.8
REST_SEC = 30.0
"""Shortest time between two cuts."""
STALE_SEC = 15.0
"""Without metrics for so long, what was seen before says nothing, and a turnover begins anew."""


@dataclass
class PaceController:
    """The number of trials at once, as it stands after each look at the servers."""

    number: int
    most: int
    least: int = 1
    _cut_at: float | None = field(default=None, init=False)
    _ended_then: int = field(default=0, init=False)
    _seen_at: float | None = field(default=None, init=False)
    _queued: bool = field(default=False, init=False)

    def observe(self, now: float, load: ServerLoad | None, *, under_way: int, ended: int) -> str:
        """Take in a look at the servers, None where they told nothing; gives why the number changed, or nothing.

        The load has the preemptions since the look before. `now` is in seconds of any clock, `ended` the trials that
        have ended since the beginning.
        """
        if load is None:
            return ""
        is_stale = self._seen_at is None or now - self._seen_at > STALE_SEC
        self._seen_at = now
        was_queued, self._queued = self._queued and not is_stale, load.waiting > 0
        if is_stale:
            self._begin_turn(ended)
        why, number = self._wanted(load, was_queued, under_way)
        if number < self.number:
            return self._cut(now, number, why, under_way, ended)
        # As many trials have ended as go at once: those under way show what the number costs.
        if number > self.number and ended - self._ended_then >= self.number:
            self._begin_turn(ended)
            self.number = number
            return why
        return ""

    def _wanted(self, load: ServerLoad, was_queued: bool, under_way: int) -> tuple[str, int]:
        # What is not under way did not cause it: a cut goes from what is.
        base = min(self.number, max(under_way, self.least))
        if load.preemptions > 0:
            return f"{load.preemptions} requests were preempted", self._bounded(base * PREEMPTION_CUT)
        if load.usage > FULL:
            return f"KV cache {load.usage:.0%} full", self._bounded(base * AIM / load.usage)
        if load.waiting > 0:
            # One look may meet requests that have just come.
            return (
                (f"{load.waiting} requests wait", self._bounded(base * QUEUE_CUT)) if was_queued else ("", self.number)
            )
        if load.usage < ROOMY and under_way >= self.number:
            growth = max(GROWTH, min(STRIDE, ROOMY / max(load.usage, 0.01)))
            return f"KV cache {load.usage:.0%} full", self._bounded(max(self.number * growth, self.number + 1))
        return "", self.number

    def _bounded(self, number: float) -> int:
        return max(self.least, min(self.most, int(number)))

    def _cut(self, now: float, number: int, why: str, under_way: int, ended: int) -> str:
        # Trials under way are not ended: until they are, the cut before has not shown what it does.
        if self._cut_at is not None and (now - self._cut_at < REST_SEC or under_way > self.number):
            return ""
        self._cut_at = now
        self._begin_turn(ended)
        self.number = number
        return why

    def _begin_turn(self, ended: int) -> None:
        self._ended_then = ended


def first_number(cache_tokens: int | None, context_tokens: int | None, most: int, otherwise: int) -> int:
    """How many trials begin: as many as fit the cache with full contexts, or `otherwise` where that is not known."""
    if cache_tokens is None or not context_tokens:
        return max(1, min(otherwise, most))
    return max(1, min(cache_tokens // context_tokens, most))
