"""`tbench clean` as a command, limited to one run, because the engine is shared."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import KEPT_PREFIX, LABEL_OWNER, LABEL_RUN, owner

pytestmark = pytest.mark.engine
TBENCH = str(Path(sys.executable).with_name("tbench"))


def clean(*arguments: str) -> tuple[int, list[str], str]:
    done = subprocess.run([TBENCH, "clean", *arguments], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.slow
def test_what_is_removed_and_what_is_kept_is_reported(engine: Engine, tools_volume: str) -> None:
    run = f"test-{uuid.uuid4().hex[:12]}"
    script = "from tbench.sandbox.owner import owner; print(owner())"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    made = [
        engine.api.create_container("debian:bookworm-slim", ["true"], labels={LABEL_RUN: run, LABEL_OWNER: whose})["Id"]
        for whose in (ended, ended, owner())
    ]
    engine.api.rename(made[1], f"{KEPT_PREFIX}{run}")
    dead, kept, live = (f"container {each[:12]} of run {run}" for each in made)
    why = "its process "
    try:
        code, said, errors = clean("--run", run, "--dry-run")
        assert (code, said[0], errors) == (0, f"would remove {dead}", "")
        code, said, errors = clean("--run", run)
        assert (code, said[0], errors) == (0, f"removed {dead}", "")
        assert f"kept {kept}: kept on purpose; --kept removes it" in said
        assert any(line.startswith(f"kept {live}: {why}") and line.endswith("still runs") for line in said)
        assert clean("--run", run)[1][-1] == "nothing to remove"
        assert clean("--run", run, "--all")[1][0] == f"removed {kept}"
    finally:
        engine.api.remove_container(made[-1], force=True)
    assert clean("--run", run) == (0, ["nothing to remove"], "")
    assert engine.api.containers(all=True, filters={"label": f"{LABEL_RUN}={run}"}) == []
