"""Backends of Runners, over fake sandboxes."""

from __future__ import annotations

from collections.abc import Callable

from tbench.sandbox.backend import SandboxSettings
from tbench.sandbox.fake import FakeBackend, FakeSandbox


class Fakes:
    """The backends that a Runner made, and what their sandboxes are."""

    def __init__(self) -> None:
        self.make: Callable[[], FakeSandbox] = FakeSandbox
        self.backends: list[FakeBackend] = []

    def __call__(self, settings: SandboxSettings) -> FakeBackend:
        self.backends.append(FakeBackend(lambda _: self.make()))
        return self.backends[-1]
