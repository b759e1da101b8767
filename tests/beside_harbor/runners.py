"""The two runners: the command that each is given for a case, and how what it wrote is read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tbench import __version__
from tbench.demo.replies import MODEL_ID
from tbench.storage.read_run import read_run

PHASES = ("environment", "agent set-up", "agent", "verifier", "teardown")
NO_COMPOSE = (
    "Harbor needs `docker compose`, which this docker client does not know: install the package docker-compose-plugin, "
    "docker-compose-v2 or docker-compose, or name a directory that has cli-plugins/docker-compose in DOCKER_CONFIG"
)


class Case(NamedTuple):
    """What is run again and again: trials of the oracle, or one of the scripted model."""

    name: str
    about: str
    repetitions: int
    trials: int = 1
    """All of them at once."""
    duration_sec: float | None = None
    """The duration of each command of the model; None for the oracle."""


class Trial(NamedTuple):
    """What became of one trial, and wall seconds by phase."""

    reward: float | None
    error: str | None
    phases: dict[str, float]


class Runner(Protocol):
    """A command line that runs trials."""

    name: str

    def version(self) -> str: ...

    def environ(self) -> Mapping[str, str]: ...

    def command(self, case: Case, task: Path, base_url: str, output: Path) -> list[str]: ...

    def trials(self, output: Path) -> list[Trial]: ...


def common_environ() -> dict[str, str]:
    """The endpoint asks for no key, but clients want one; it is on this machine, so no proxy leads to it."""
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"]))
    return {**os.environ, "OPENAI_API_KEY": "none", "NO_PROXY": direct, "no_proxy": direct}


class Tbench:
    """This checkout's own command."""

    name = "tbench"

    def version(self) -> str:
        return __version__

    def environ(self) -> Mapping[str, str]:
        return common_environ()

    def command(self, case: Case, task: Path, base_url: str, output: Path) -> list[str]:
        model = ["--preset", "terminus-2", "--base-url", base_url, "--model", MODEL_ID]
        trials = str(case.trials)
        return [
            *(str(Path(sys.executable).with_name("tbench")), "run", str(task), "--quiet", "--output", str(output)),
            # The task asks for a whole cpu: without this there are never more trials at once than cpus.
            *("--seeds", trials, "--concurrency", trials, "--cpu-overcommit", trials),
            *(["--agent", "oracle"] if case.duration_sec is None else model),
        ]

    def trials(self, output: Path) -> list[Trial]:
        found = []
        for result in read_run(output).results:
            times = result.timings
            phases = {
                "environment": times.sandbox_sec,
                "agent": times.agent_sec,
                "verifier": times.verifier_sec,
                "teardown": times.teardown_sec,
            }
            error = None if result.error is None else result.error.message
            found.append(Trial(result.reward, error, phases))
        return found


class Harbor:
    """Harbor's command, in a virtual environment of its own."""

    name = "Harbor"

    def __init__(self, program: Path) -> None:
        self._program = program

    def missing(self) -> str | None:
        """One line about what Harbor needs and this machine lacks; None where all is there."""
        if not os.access(self._program, os.X_OK):
            return f"no Harbor at {self._program}; `make bench-harbor` installs it"
        if (docker := shutil.which("docker")) is None:
            return "Harbor needs the docker client, which is not installed"
        if subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
            return NO_COMPOSE
        return None

    def version(self) -> str:
        return subprocess.check_output([self._program, "--version"], env=self.environ(), text=True).strip()

    def environ(self) -> Mapping[str, str]:
        # Neither reports itself nor looks up prices: what the network takes is not Harbor's cost.
        return {**common_environ(), "HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

    def command(self, case: Case, task: Path, base_url: str, output: Path) -> list[str]:
        model = ["--agent", "terminus-2", "--base-url", base_url, "--model", f"openai/{MODEL_ID}"]
        trials = str(case.trials)
        return [
            *(str(self._program), "run", "--path", str(task), "--quiet", "--yes"),
            *("--jobs-dir", str(output.parent), "--job-name", output.name),
            *("--n-attempts", trials, "--n-concurrent", trials),
            *(["--agent", "oracle"] if case.duration_sec is None else model),
        ]

    def trials(self, output: Path) -> list[Trial]:
        return [_harbor_trial(json.loads(file.read_text())) for file in sorted(output.glob("*/result.json"))]


def _harbor_trial(result: Mapping[str, Any]) -> Trial:
    """Harbor writes when each phase began and ended, but for the teardown, which is the last."""
    fields = ("environment_setup", "agent_setup", "agent_execution", "verifier")
    phases = {
        phase: _seconds(result[field]["started_at"], result[field]["finished_at"])
        for phase, field in zip(PHASES, fields, strict=False)
        if result.get(field)
    }
    if result.get("verifier"):
        phases["teardown"] = _seconds(result["verifier"]["finished_at"], result["finished_at"])
    rewards = (result.get("verifier_result") or {}).get("rewards") or {}
    error = (result.get("exception_info") or {}).get("exception_type")
    return Trial(rewards.get("reward"), error, phases)


def _seconds(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
