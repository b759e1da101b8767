"""Harbor's own code for tests: where it is to be had, and what it reads of exported runs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
HARBOR = Path(os.environ.get("HARBOR_VENV") or ROOT / ".venv-harbor") / "bin" / "python"
needs_harbor = pytest.mark.skipif(
    not HARBOR.exists(), reason=f"no Harbor: {HARBOR} is missing; make .venv-harbor/.installed"
)


def read_by_harbor(jobs: Path, *documents: Path) -> dict[str, Any]:
    reader = ROOT / "tests" / "harbor_reads.py"
    done = subprocess.run(
        [HARBOR, reader, jobs, *documents], capture_output=True, text=True, timeout=300, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found
