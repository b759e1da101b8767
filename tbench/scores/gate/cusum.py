"""One-sided CUSUM: how much speaks for a level below the baseline's, night by night."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean


class Cusum:
    """C = max(0, C - z - k), beyond its limit where C > h (Page 1954, "Continuous inspection schemes").

    `since` is the number of the first night after C was last 0. C is measured against the baseline, so after a long
    alarm it would stay above h for weeks although all is well again. An alarm therefore ends also when the same
    evidence, 2 k h of log likelihood, speaks for the baseline's level and against that of the nights since the change;
    C is 0 then.
    """

    def __init__(self, k: float, h: float) -> None:
        self.value = 0.0
        self.since: int | None = None
        self.alarm = False
        self._k, self._h = k, h
        self._drops: list[float] = []
        self._drop = self._recovery = 0.0

    def after(self, z: float) -> float:
        """What C would be after a night with `z`."""
        return max(0.0, self.value - z - self._k)

    def add(self, number: int, z: float) -> None:
        """Take in night `number`, whose score is `z` standard deviations above the baseline."""
        if self.alarm:
            self._recovery = max(0.0, self._recovery + z + self._drop / 2.0)
            if self._drop * self._recovery > 2.0 * self._k * self._h:
                self.forget()
                return
        self.value = self.after(z)
        if self.value == 0.0:
            self.forget()
            return
        if self.since is None:
            self.since = number
        self._drops.append(-z)

    def settle(self, *, confirmed: bool) -> None:
        """Raise, keep or end the alarm; beyond the limit it needs to be confirmed."""
        alarm = confirmed and self.value > self._h
        if alarm and not self.alarm:
            self._drop, self._recovery = fmean(self._drops), 0.0
        self.alarm = alarm

    @property
    def beyond(self) -> bool:
        """Whether C is above its limit."""
        return self.value > self._h

    def forget(self) -> None:
        """Begin anew."""
        self.value, self.since, self.alarm = 0.0, None, False
        self._drops.clear()


def first_changed(zs: Sequence[float]) -> int:
    """Which of the nights after C was last 0 is the likeliest to be the first on another level, counted from 0.

    With the size of the change unknown, that is the one from which on (sum z)^2 / nights is largest (Hinkley 1970,
    "Inference about the change-point in a sequence of random variables").
    """
    best, found, total = -1.0, 0, 0.0
    for nights, at in enumerate(range(len(zs) - 1, -1, -1), start=1):
        total += zs[at]
        if total * total / nights >= best:
            best, found = total * total / nights, at
    return found
