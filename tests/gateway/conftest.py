"""The program of the tools that passes connections on (images/tools/gateway.c), compiled here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "images" / "tools" / "gateway.c"


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here; the program is tried in containers")
    made = tmp_path_factory.mktemp("gateway") / "gateway"
    subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-o", made, SOURCE], check=True)
    return str(made)
