"""How many examples a property is tried with: many new ones by `make test-all`, a fixed sample by `make test`."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

SAMPLE = 5
"""`make test` tries one of so many examples; since it tries the same ones every time, more would find nothing new."""


def examples(count: int, **known: Any) -> settings:
    """`count` examples where new ones are looked for, fewer where they are always the same."""
    return settings(max_examples=max(1, count // SAMPLE) if settings.default.derandomize else count, **known)
