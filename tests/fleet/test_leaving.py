"""What removes on several machines what a process did not wait for."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest

from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_OWNER

pytestmark = pytest.mark.engine
SHARED = "unix:///var/run/docker.sock"
BOUND_SEC = 60.0


def test_containers_of_the_owner_go_and_a_machine_that_is_away_keeps_no_one(engine: Engine) -> None:
    owner = f"somebody-{uuid.uuid4().hex}"
    image = engine.api.images(name="debian:bookworm-slim", quiet=True)[0]
    made = [
        engine.api.create_container(image, command="true", labels={LABEL_OWNER: label})["Id"]
        for label in (owner, f"{owner}-else")
    ]
    try:
        command = [sys.executable, "-m", "tbench.fleet.engines", owner, "unix:///nowhere.sock", SHARED]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_SEC)
        assert (ended.returncode, ended.stderr) == (0, "")
        left = {each["Id"] for each in engine.api.containers(all=True, filters={"label": LABEL_OWNER})}
        assert made[0] not in left and made[1] in left
    finally:
        engine.api.remove_container(made[1], force=True)
