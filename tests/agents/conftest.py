"""What the tests of agents share."""

from __future__ import annotations

import subprocess
import sys

import pytest
from packaged_trials import Pull

from tbench.agents.packages import require_package
from tbench.agents.recipe import load_recipe
from tbench.errors import UsageError


def _is_there(name: str) -> bool:
    try:
        require_package(load_recipe(name), name)
    except UsageError:
        return False
    return True


@pytest.fixture(scope="session")
def pulled() -> Pull:
    """Pulls an agent if it is not here; a test is skipped where its registry is away."""
    known: dict[str, str] = {}

    def pull(name: str) -> None:
        if name not in known and _is_there(name):
            known[name] = ""
        elif name not in known:
            command = [sys.executable, "-m", "tbench", "agent", "pull", name]
            done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
            known[name] = "" if done.returncode == 0 else done.stderr.strip()
        if known[name]:
            pytest.skip(known[name])

    return pull
