"""A Ray cluster of a test's own on this machine, in a process of its own that does as it is told.

As a program it is that process: it prints the cluster's address, reads a line of JSON for each thing to do, and answers
each with a line.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

_START_SEC, _ANSWER_SEC = 90.0, 60.0


class RayNodes:
    """The cluster, whose nodes may be killed, and others added. Its head has no trials."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        # Ray's own log of a killed node is nobody's business, and a pipe for it would fill up.
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **variables},
            start_new_session=True,
        )
        self.address = self._answer(_START_SEC)

    def _answer(self, limit_sec: float = _ANSWER_SEC) -> str:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], limit_sec)[0]:
            raise AssertionError("the cluster's process does not answer")
        return self._process.stdout.readline().strip()

    def _do(self, **what: Any) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def add(self, name: str, *, cpus: int = 1, resources: Mapping[str, float] | None = None, **env: str) -> None:
        """Add a node; with `env` as the variables of whatever runs on it. Returns when it is there."""
        given = {"engine": 1} if resources is None else dict(resources)
        assert self._do(add=name, cpus=cpus, resources=given, env=env) == "done"

    def kill(self, name: str) -> None:
        """End all processes of a node, at once."""
        assert self._do(kill=name) == "done"

    def kill_head(self) -> None:
        """End the head, and with it what knows of the cluster; the nodes go on, as long as they do."""
        assert self._do(kill_head=True) == "done"

    def end(self) -> None:
        """End all of it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_ANSWER_SEC)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()


def actors() -> list[int]:
    """Process ids of actors of runs on this machine; Ray names their processes after the class."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(b"ray::NodeActor"):
                found.append(int(path.parent.name))
    return found


def require_ray() -> None:
    """Skip a test where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed")


@contextlib.contextmanager
def ray_nodes(*names: str, **variables: str) -> Iterator[RayNodes]:
    """A cluster with a head and these nodes, each with one cpu and the resource `engine`; `variables` for all of it."""
    require_ray()
    nodes = RayNodes(variables)
    try:
        for name in names:
            nodes.add(name)
        yield nodes
    finally:
        nodes.end()


def main() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes: dict[str, Any] = {}
    print(cluster.address, flush=True)
    for line in sys.stdin:
        what = json.loads(line)
        if "add" in what:
            name = what["add"]
            nodes[name] = cluster.add_node(
                num_cpus=what["cpus"], resources=what["resources"], node_name=name, env_vars=what["env"]
            )
        elif "kill" in what:
            cluster.remove_node(nodes.pop(what["kill"]), allow_graceful=False)
        else:
            cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
        print("done", flush=True)
    with contextlib.suppress(Exception):  # of a head that is gone
        cluster.shutdown()


if __name__ == "__main__":
    main()
