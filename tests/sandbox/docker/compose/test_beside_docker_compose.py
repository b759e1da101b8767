"""Compares the containers that `docker compose`, where installed, and tbench make of the same file."""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tbench.sandbox.backend import SandboxSettings, open_backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine
from tbench.tasks.environment import agent_environment
from tbench.tasks.task import Task

pytestmark = [pytest.mark.engine, pytest.mark.slow]
FILE = """
x-shared: &shared {WORD: "${WORD:-tangerine}", EMPTY: "", COST: $$5}
services:
  main:
    image: debian:bookworm-slim
    environment: {<<: *shared, OWN: "1.0"}
    working_dir: /srv
    depends_on: {store: {condition: service_healthy}, job: {condition: service_completed_successfully}}
  store:
    image: debian:bookworm-slim
    entrypoint: [sh, -c]
    command: ["exec sleep 600"]
    env_file: vars.env
    environment: [LISTED=yes, EQUALS=a=b]
    user: "1:1"
    working_dir: /tmp
    hostname: storehouse
    stop_signal: SIGINT
    init: true
    tty: true
    stdin_open: true
    read_only: true
    shm_size: 32m
    mem_limit: 64m
    cpus: 0.5
    pids_limit: 50
    cap_add: [SYS_PTRACE]
    cap_drop: [MKNOD]
    security_opt: ["no-new-privileges:true"]
    ulimits: {nofile: 1000, nproc: {soft: 100, hard: 200}}
    sysctls: {net.core.somaxconn: 100}
    extra_hosts: ["far:10.9.8.7"]
    tmpfs: ["/run:size=1m"]
    volumes: ["data:/data:ro", {type: volume, source: data, target: /more}]
    expose: [80, "53/udp"]
    restart: on-failure:3
    healthcheck: {test: "true", interval: 1s, timeout: 2s, retries: 3, start_period: 4s}
    networks: {back: {aliases: [shop]}}
    labels: {fruit: pear}
  job:
    image: debian:bookworm-slim
    command: sh -c "exit 0"
  beside:
    image: debian:bookworm-slim
    command: sleep 600
    network_mode: service:store
  alone:
    image: debian:bookworm-slim
    command: [sleep, "600"]
    network_mode: none
    deploy: {resources: {limits: {cpus: "0.25", memory: 32M, pids: 20}}}
    healthcheck: {disable: true}
volumes: {data: }
networks: {back: {internal: true}}
"""
CONFIG = ("Hostname", "User", "Tty", "OpenStdin", "Cmd", "Entrypoint", "WorkingDir", "StopSignal", "Healthcheck")
HOST = (
    *("NanoCpus", "Memory", "PidsLimit", "Init", "ReadonlyRootfs", "ShmSize", "CapAdd", "SecurityOpt", "Tmpfs"),
    *("Sysctls", "ExtraHosts", "RestartPolicy", "Privileged"),
)
OURS = {"main": {"Entrypoint", "Cmd", "Hostname", "Memory", "NanoCpus", "PidsLimit"}}
"""Values that tbench sets itself, whatever the file says."""


@pytest.fixture
def task(make_task: Any) -> Task:
    path = make_task("beside", toml="[environment]\nmemory_mb = 256\nallow_internet = false\n", dockerfile=None)
    (path / "environment").mkdir()
    (path / "environment" / "docker-compose.yaml").write_text(FILE)
    (path / "environment" / "vars.env").write_text("FROM_FILE='a b'\nLISTED=no\n")
    return Task.read(path)


@pytest.fixture
def composed(task: Task, engine: Engine) -> Iterator[dict[str, Any]]:
    """The containers that `docker compose` makes of the file, by service."""
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    ):
        pytest.skip("docker compose is not installed")
    folder, project = task.path / "environment", f"tbench-{uuid.uuid4().hex[:8]}"
    keep = folder.parent / "keep.json"
    keep.write_text(json.dumps({"services": {"main": {"command": ["sh", "-c", "sleep infinity"]}}}))
    command = ["docker", "compose", "--project-name", project, "--project-directory", str(folder), "-f", str(keep)]
    command += ["-f", str(folder / "docker-compose.yaml")]
    try:
        subprocess.run([*command, "up", "--detach"], check=True, capture_output=True, timeout=120)
        of_project = {"label": f"com.docker.compose.project={project}"}
        containers = engine.api.containers(all=True, filters=of_project)
        yield {each["Labels"]["com.docker.compose.service"]: inspected(engine, each["Id"]) for each in containers}
    finally:
        subprocess.run([*command, "down", "--volumes", "--timeout", "0"], capture_output=True, timeout=120)


def inspected(engine: Engine, container: str) -> dict[str, Any]:
    found: dict[str, Any] = engine.api.inspect_container(container)
    return found


def shown(name: str, container: dict[str, Any]) -> dict[str, Any]:
    """The part of a container that comes from the file, in a comparable form."""
    config, host = container["Config"], container["HostConfig"]
    found: dict[str, Any] = {key: config.get(key) or None for key in CONFIG}
    found |= {key: host.get(key) or None for key in HOST}
    found["WorkingDir"] = config["WorkingDir"] or "/"
    found["Hostname"] = config["Hostname"] if config["Hostname"] != container["Id"][:12] else None
    found["Tmpfs"] = {path: how for path, how in (host.get("Tmpfs") or {}).items() if "tbench" not in path} or None
    found["Env"] = sorted(each for each in config["Env"] or () if not each.startswith(("PATH=", "LANG=")))
    found["Ulimits"] = sorted((each["Name"], each["Soft"], each["Hard"]) for each in host["Ulimits"] or ())
    found["Dropped"] = sorted(set(host["CapDrop"] or ()) - {"NET_RAW"})
    found["Ports"] = sorted(port if "/" in port else f"{port}/tcp" for port in config.get("ExposedPorts") or ())
    found["Mounts"] = sorted((each["Destination"], each["RW"]) for each in container["Mounts"] if not is_ours(each))
    found["Network"] = host["NetworkMode"].partition(":")[0] if ":" in host["NetworkMode"] else None
    found["Aliases"] = sorted(aliases(container))
    found["State"] = (container["State"]["Status"], container["State"]["ExitCode"])
    found["Health"] = "Health" in container["State"]
    return {key: value for key, value in found.items() if key not in OURS.get(name, ())}


def is_ours(mount: dict[str, Any]) -> bool:
    return str(mount["Destination"]).startswith("/opt/tbench")


def aliases(container: dict[str, Any]) -> set[str]:
    """Its names on networks, but for those that nobody has written."""
    names = {alias for each in container["NetworkSettings"]["Networks"].values() for alias in each["Aliases"] or ()}
    made_up = {container["Id"][:12], container["Name"].lstrip("/"), container["Config"]["Hostname"]}
    return {name for name in names if name not in made_up}


async def test_containers_are_as_docker_compose_makes_them(
    task: Task, composed: dict[str, Any], engine: Engine, tools_volume: str
) -> None:
    async with open_backend(DockerBackend(engine, SandboxSettings("tests-beside"))) as backend:
        sandbox: Any = await backend.sandbox(agent_environment(task), "beside.0")
        try:
            ours = {name: inspected(engine, sandbox.service(name).container_id) for name in composed}
        finally:
            await sandbox.remove()
    assert set(composed) == {"main", "store", "job", "beside", "alone"}
    for name, container in composed.items():
        theirs = shown(name, container)
        # Where the file says nothing of limits, tbench has some all the same.
        unlimited = {key for key in ("NanoCpus", "Memory", "PidsLimit") if theirs.get(key) is None}
        same = {key: value for key, value in shown(name, ours[name]).items() if key not in unlimited}
        assert same == {key: value for key, value in theirs.items() if key not in unlimited}, name
