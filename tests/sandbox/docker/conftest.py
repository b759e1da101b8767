"""Fixtures of tests against a real registry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from own_registry import Front, OwnRegistry, front_of, own_registry


@pytest.fixture(scope="module")
def registry() -> Iterator[OwnRegistry]:
    with own_registry() as registry:
        yield registry


@pytest.fixture
def front(registry: OwnRegistry) -> Iterator[Front]:
    with front_of(registry) as front:
        yield front
