"""Checks what an engine really does for its containers: start them, limit them, let them out, resolve names."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tbench.config.limits_in_force import LimitState
from tbench.doctor import Check, CheckResult, fail, ok, skipped, warn
from tbench.doctor.connection import Surroundings, cannot_start
from tbench.sandbox.backend import TOOLS
from tbench.sandbox.docker.create import ContainerLimits, host_config_of
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.limits import READ_LIMITS, limit_states, read_limits
from tbench.sandbox.docker.owner import LABEL_OWNER, LABEL_RUN, NETWORK, owner
from tbench.sandbox.docker.tools import base_images, tools_volume_name
from tbench.text import one_line
from tbench.threads import in_thread

# Runs a script in a small container that is removed at once, and gives back what it prints.

_REMOVE_SEC = 20.0


@dataclass(frozen=True)
class ProbeOutput:
    """How the container ended, and what it printed."""

    exit_code: int
    text: str


def probe_image() -> str:
    return base_images()[0][0]


async def run_probe(
    engine: Engine, script: str, *, limit_sec: float = 10.0, tools: str | None = None, **host_config: Any
) -> ProbeOutput:
    """Run `script` with the base image's sh, and remove the container in any case. Raises EngineError.

    `tools` is the volume to mount where the tools belong. The container has the labels of a run, by which it is found
    and removed even where this process was killed.
    """
    api = engine.api
    if tools is not None:
        host_config |= {"binds": [f"{tools}:{TOOLS}:ro"], "tmpfs": {f"{TOOLS}/run": "mode=1777,size=16m"}}
    creation = asyncio.ensure_future(
        engine.call(
            api.create_container,
            probe_image(),
            entrypoint=["sh", "-c"],
            command=[script],
            labels={LABEL_RUN: f"doctor-{os.getpid()}", LABEL_OWNER: owner()},
            host_config=api.create_host_config(**({"network_mode": "none"} | host_config)),
        )
    )
    try:
        created = await asyncio.shield(creation)
    except asyncio.CancelledError:
        # The engine goes on creating: wait for its answer, or the container would be nobody's.
        await _remove(engine, (await creation)["Id"])
        raise
    try:
        await engine.call(api.start, created["Id"], deadline_sec=limit_sec)
        ended = await engine.call(api.wait, created["Id"], deadline_sec=limit_sec)
        text: bytes = await engine.call(api.logs, created["Id"], deadline_sec=5.0)
        return ProbeOutput(ended["StatusCode"], text.decode("utf-8", "replace").strip())
    finally:
        await asyncio.shield(_remove(engine, created["Id"]))


async def _remove(engine: Engine, container: str) -> None:
    try:
        await engine.call(engine.api.remove_container, container, force=True, v=True, deadline_sec=_REMOVE_SEC)
    except EngineError as error:
        if error.status not in (404, 409):
            raise


REACHED = ("deb.debian.org", 80)
"""The host and port that containers have to reach: verifiers download from there most often."""
_SETUP = "run 'tbench setup'"
_MEMORY_MB, _PIDS, _CPUS = 64, 40, 0.5
_ASKED = ContainerLimits(_CPUS, _MEMORY_MB, _PIDS)
_SLOW_DRIVERS = {
    "vfs": "it copies the whole image for every container: slow, and it fills the disk",
    "devicemapper": "it is deprecated and slow",
    "aufs": "it is deprecated",
}
# What the limits are said to be, then what really happens beyond each.
LIMITS_SCRIPT = f"""{READ_LIMITS}
echo hog $(head -c {3 * _MEMORY_MB}M /dev/zero | tail -c {3 * _MEMORY_MB - 8}M 2>/dev/null | wc -c)
echo forks $( (i=0; while [ $i -lt {3 * _PIDS} ]; do sleep 30 & i=$((i+1)); done >/dev/null; echo all) 2>/dev/null)
"""
# tmux as the terminal starts it: under our locale, with a server of its own.
_TMUX = f"""
export LOCPATH={TOOLS}/share/locale LC_ALL=C.UTF-8 TERMINFO={TOOLS}/share/terminfo
t="{TOOLS}/bin/tmux -S {TOOLS}/run/doctor -f /dev/null"
$t new-session -d 'sleep 9' && $t list-sessions -F '#{{version}}' && $t kill-server
"""
_WORDS = 160


def checks(engine: Engine) -> list[Check]:
    """The checks that need a container to start."""
    return [
        Check("limits", partial(look_at_limits, engine), 40),
        Check("tools", partial(look_at_tools, engine), 30),
        Check("network", partial(look_at_network, engine), 30),
        Check("network of builds", partial(look_at_builds, engine), 30),
        Check("dns", partial(look_at_names, engine), 30),
    ]


async def look_at_start(engine: Engine, here: Surroundings) -> CheckResult:
    try:
        output = await run_probe(engine, "echo started")
    except EngineError as error:
        if error.status == 404 and "image" in str(error).lower():
            return skipped(f"the base image {probe_image()} is not there yet; {_SETUP}")
        return cannot_start(one_line(str(error), 300), here)
    if output.text != "started":
        return cannot_start(f"exit code {output.exit_code}: {output.text[-_WORDS:]}", here)
    return ok("a container starts and ends")


async def look_at_storage(engine: Engine) -> CheckResult:
    driver = engine.info.storage_driver
    if driver in _SLOW_DRIVERS:
        return warn(
            f"{driver}: {_SLOW_DRIVERS[driver]}", 'set {"storage-driver": "overlay2"} in /etc/docker/daemon.json'
        )
    return ok(driver)


async def look_at_limits(engine: Engine) -> CheckResult:
    output = await run_probe(engine, LIMITS_SCRIPT, limit_sec=30, **host_config_of(_ASKED, engine))
    return judge_limits(read_limits(output.text), engine.info.cgroup_version)


def judge_limits(seen: Mapping[str, str], version: str) -> CheckResult:
    """Judge what a container found in its cgroup, and what became of a memory hog and of many processes."""
    states, wrong = limit_states(seen, _ASKED), []
    if states["memory"] != LimitState.IN_FORCE:
        wrong.append(f"memory is {seen.get('memory') or 'unknown'} bytes instead of {_MEMORY_MB << 20}")
    if seen.get("hog") == str((3 * _MEMORY_MB - 8) << 20):
        wrong.append(f"{3 * _MEMORY_MB} MB were used where {_MEMORY_MB} were allowed")
    if states["swap"] == LimitState.NOT_IN_FORCE:
        wrong.append("swap is used beyond the memory that is allowed")
    if states["pids"] != LimitState.IN_FORCE:
        wrong.append(f"pids is {seen.get('pids') or 'unknown'} instead of {_PIDS}")
    if seen.get("forks") == "all":
        wrong.append(f"{3 * _PIDS} processes ran where {_PIDS} were allowed")
    if states["cpus"] != LimitState.IN_FORCE:
        wrong.append(f"cpu is {seen.get('cpu') or 'unknown'} instead of {_CPUS:g}")
    if wrong:
        advice = "enable these cgroup controllers for the engine (rootless: have systemd delegate them)"
        return fail(f"cgroup v{version}: limits are not in force: {'; '.join(wrong)}", advice)
    return ok(f"cgroup v{version}: memory, pids and cpus are limited, and a memory hog and a fork bomb ended")


async def look_at_tools(engine: Engine, name: str | None = None) -> CheckResult:
    name = name or tools_volume_name()
    try:
        await engine.call(engine.api.inspect_volume, name)
    except EngineError as error:
        if error.status == 404:
            return warn(f"volume {name} is not there yet: the first run builds it, which takes a minute", _SETUP)
        raise
    try:
        output = await run_probe(engine, _TMUX, tools=name)
    except EngineError as error:
        if error.status in (404, 409):
            raise  # somebody removed the container: that says nothing of the volume
        # In an empty volume, as a killed set-up leaves it, there is no place to mount anything.
        output = ProbeOutput(-1, str(error))
    if output.exit_code != 0:
        return fail(
            f"tmux in volume {name} does not start: {output.text[-_WORDS:]}",
            f"{_SETUP}, which fills it again",
        )
    return ok(f"volume {name}, tmux {output.text} starts")


async def look_at_network(engine: Engine, reached: tuple[str, int] = REACHED) -> CheckResult:
    found = await engine.call(engine.api.networks, names=[f"^{NETWORK}$"])
    if not found:
        return warn(f"the bridge {NETWORK} is not there yet: the first run makes it", _SETUP)
    options = found[0].get("Options") or {}
    host, port = reached
    output = await run_probe(
        engine, f"timeout 5 bash -c 'exec 3<>/dev/tcp/{host}/{port}' && echo reached", network_mode=NETWORK
    )
    if not output.text.endswith("reached"):
        if not await in_thread(_host_reaches, host, port):
            return warn(f"{host}:{port} is reached neither from here nor from a container", _OFFLINE)
        return fail(f"this machine reaches {host}:{port}, a container on {NETWORK} does not", _NO_ROUTE)
    if options.get("com.docker.network.bridge.enable_icc") != "false":
        return warn(
            f"containers on {NETWORK} reach the outside, and each other",
            "remove that network ('tbench clean --all') and run 'tbench setup'; Podman has no such option: "
            "use --concurrency 1 where trials must not see each other",
        )
    return ok(f"a container on {NETWORK} reaches {host}:{port}; containers do not reach each other")


async def look_at_builds(engine: Engine) -> CheckResult:
    """Check the engine's default bridge, which is not ours: images are built on it."""
    try:
        output = await run_probe(engine, "echo started", network_mode="bridge")
    except EngineError as error:
        what = f"no container starts on the engine's default bridge: {one_line(str(error), 200)}"
        return fail(what, "images cannot be built: restart the engine, which makes that bridge anew")
    return (
        ok("a container starts on the engine's default bridge")
        if output.text == "started"
        else fail(f"a container on the engine's default bridge says {output.text[-_WORDS:]!r}", "read the engine's log")
    )


_OFFLINE = "tasks that download will fail unless there is a proxy (--container-proxy); leave them out, or open one"
_NO_ROUTE = "is net.ipv4.ip_forward 1, and does the firewall (iptables FORWARD, ufw, VPN) let the engine's bridges out?"


async def look_at_names(engine: Engine, host: str = REACHED[0]) -> CheckResult:
    if not await engine.call(engine.api.networks, names=[f"^{NETWORK}$"]):
        return skipped(f"the bridge {NETWORK} is not there yet")
    output = await run_probe(engine, f"timeout 6 getent hosts {host} && echo found", network_mode=NETWORK)
    if output.text.endswith("found"):
        return ok(f"{host} is found from a container")
    if not await in_thread(_host_reaches, host, None):
        return warn(f"{host} is found neither from here nor from a container", _OFFLINE)
    return fail(
        f"this machine finds {host}, a container does not",
        'set {"dns": ["IP"]} in /etc/docker/daemon.json to a name server that containers can reach (not 127.0.0.53)',
    )


def _host_reaches(host: str, port: int | None) -> bool:
    try:
        if port is None:
            return bool(socket.getaddrinfo(host, None))
        with socket.create_connection((host, port), 5):
            return True
    except OSError:
        return False
