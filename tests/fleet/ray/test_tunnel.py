"""The process that speaks to Ray, without a cluster: its words for what Ray raises, and its end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow]

# Ray is imported in processes of their own: it starts threads, and changes warnings.
SAYS = """
import json, sys
from ray.exceptions import ActorDiedError, ActorUnavailableError
from tbench.fleet.ray.tunnel import describe_failure

class Died(ActorDiedError):
    def __init__(self, text):
        self.text = text
    def __str__(self):
        return self.text

errors = [
    ActorUnavailableError("Rpc error: Socket closed", b"0" * 16),
    ActorDiedError(),
    Died("The actor died because its node has died. Node Id: abc"),
    Died("The actor died because of an error in its creation task, ray::A()\\nModuleNotFoundError: No module: y"),
    RuntimeError("Version mismatch: The cluster was started with:\\n    Ray: 2.59.0\\n    Python: 3.12.0"),
    ConnectionError(),
]
json.dump([describe_failure(error) for error in errors], sys.stdout)
"""


@pytest.fixture(autouse=True)
def ray() -> None:
    pytest.importorskip("ray.exceptions", exc_type=ImportError)


def test_each_error_is_one_line() -> None:
    ended = subprocess.run([sys.executable, "-c", SAYS], capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(ended.stdout) == [
        "its actor can no longer be reached",
        "its actor has ended",
        "its node has died",
        "its actor does not start: ModuleNotFoundError: No module: y",
        "Version mismatch: The cluster was started with: Ray: 2.59.0 Python: 3.12.0",
        "ConnectionError",
    ]


def test_where_it_cannot_connect_it_says_so_in_one_line_of_json_and_ends(tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    ended = subprocess.run(
        [sys.executable, "-m", "tbench.fleet.ray.tunnel", "auto", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        env={"RAY_TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    (line,) = ended.stdout.splitlines()
    told = json.loads(line)
    assert (told["kind"], told["why"]) == ("ended", "no Ray runs at 127.0.0.1:1, where one ran before")
