"""Fixtures of the harness tests."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SERVER_FILE = Path(__file__).parents[1] / "fault_server.py"


def load_fault_server() -> Any:
    """The tests are no package, so their helper is loaded from its file."""
    spec = importlib.util.spec_from_file_location("fault_server", SERVER_FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fault_server = load_fault_server()


@pytest.fixture
def endpoint() -> Iterator[Any]:
    """A FaultServer: an endpoint that misbehaves as told."""
    server = fault_server.FaultServer()
    yield server
    server.close()


@pytest.fixture
def recorded(endpoint: Any) -> Any:
    """The same, in a checkout that has the recordings of a real vLLM beside it."""
    if not fault_server.RECORDED.is_dir():
        pytest.skip(f"no recordings at {fault_server.RECORDED}")
    return endpoint
