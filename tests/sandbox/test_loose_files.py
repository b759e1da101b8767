"""Files of environment/ of which no image is built: those that the task's hash names."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest
from digest_cases import write_task

from tbench.sandbox.loose_files import loose_files
from tbench.tasks.environment import agent_environment
from tbench.tasks.task import Task

TOML = '[environment]\ndocker_image = "debian:bookworm-slim"\n'
STRAY = {"environment/__pycache__/x.pyc": "", "environment/.DS_Store": "", "environment/data~": ""}


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (STRAY, None),
        (STRAY | {"environment/.gitkeep": ""}, None),
        (STRAY | {"environment/Dockerfile": "FROM a\n", "environment/a": ""}, None),
        (STRAY | {"environment/a": "x", "environment/d/b": "", "environment/l": "-> a"}, ["a", "d", "d/b", "l"]),
    ],
)
def test_only_what_is_hashed_is_copied(make_task: Any, files: dict[str, str], names: list[str] | None) -> None:
    task = Task.read(write_task(make_task(toml=TOML, dockerfile=None), files))
    found, file = loose_files(agent_environment(task)), io.BytesIO()
    assert (found is None) == (names is None)
    if found is not None:
        found.pack(file)
        file.seek(0)
        with tarfile.open(fileobj=file) as archive:
            assert archive.getnames() == names
