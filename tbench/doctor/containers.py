"""Checks that an engine starts containers, limits them, connects them to the network and resolves names."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tbench.config.limits_in_force import LimitState
from tbench.doctor import Check, Finding, fail, ok, skipped, warn
from tbench.doctor.connection import ProcessContext, cannot_start
from tbench.sandbox.backend import TOOLS
from tbench.sandbox.docker.create import limits_host_config
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.podman import overlay_remedy, podman_remedy
from tbench.sandbox.limits import READ_LIMITS, limit_states, read_limits
from tbench.sandbox.own_images import base_images, tools_volume_name
from tbench.sandbox.owner import LABEL_OWNER, LABEL_RUN, NETWORK, owner
from tbench.sandbox.recipe import ContainerLimits
from tbench.text import one_line
from tbench.threads import in_thread

_REMOVE_SEC = 20.0


@dataclass(frozen=True)
class ProbeOutput:
    """Exit code and output of a probe container."""

    exit_code: int
    text: str


def probe_image() -> str:
    return base_images()[0][0]


async def run_probe(
    engine: Engine, script: str, *, limit_sec: float = 10.0, tools: str | None = None, **host_config: Any
) -> ProbeOutput:
    """Run `script` with the base image's sh in a container that is always removed. Raises EngineError.

    `tools` is the name of a tools volume to mount. The container has the labels of a run, so that it is also removed
    after this process was killed.
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
        # The engine continues creating: wait for its answer, or the container would never be removed.
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
"""Host and port that containers have to reach, since most verifiers download from it."""
_SETUP = "run 'tbench setup'"
_MEMORY_MB, _PIDS, _CPUS = 64, 40, 0.5
_LIMITS = ContainerLimits(_CPUS, _MEMORY_MB, _PIDS)
_SLOW_DRIVERS = {
    "vfs": "it copies the whole image for every container: slow, and it fills the disk",
    "devicemapper": "it is deprecated and slow",
    "aufs": "it is deprecated",
}
# Prints the configured limits, then what happens when memory and processes exceed them.
LIMITS_SCRIPT = f"""{READ_LIMITS}
echo hog $(head -c {3 * _MEMORY_MB}M /dev/zero | tail -c {3 * _MEMORY_MB - 8}M 2>/dev/null | wc -c)
echo forks $( (i=0; while [ $i -lt {3 * _PIDS} ]; do sleep 30 & i=$((i+1)); done >/dev/null; echo all) 2>/dev/null)
"""
# Starts tmux as terminals do: with our locale, and a separate server.
_TMUX = f"""
export LOCPATH={TOOLS}/share/locale LC_ALL=C.UTF-8 TERMINFO={TOOLS}/share/terminfo
t="{TOOLS}/bin/tmux -S {TOOLS}/run/doctor -f /dev/null"
$t new-session -d 'sleep 9' && $t list-sessions -F '#{{version}}' && $t kill-server
"""
_MAX_OUTPUT = 160


def checks(engine: Engine) -> list[Check]:
    """Return the checks that need containers."""
    return [
        Check("limits", partial(check_limits, engine), 40),
        Check("tools", partial(check_tools, engine), 30),
        Check("network", partial(check_network, engine), 30),
        Check("network of builds", partial(check_build_network, engine), 30),
        Check("dns", partial(check_dns, engine), 30),
    ]


async def check_start(engine: Engine, here: ProcessContext) -> Finding:
    try:
        output = await run_probe(engine, "echo started")
    except EngineError as error:
        if error.status == 404 and "image" in str(error).lower():
            return skipped(f"the base image {probe_image()} is missing; {_SETUP}")
        return cannot_start(one_line(str(error), 300), here, engine.info)
    if output.text != "started":
        return cannot_start(f"exit code {output.exit_code}: {output.text[-_MAX_OUTPUT:]}", here, engine.info)
    return ok("a container starts and ends")


async def check_storage(engine: Engine) -> Finding:
    driver = engine.info.storage_driver
    if driver in _SLOW_DRIVERS:
        docker = 'set {"storage-driver": "overlay2"} in /etc/docker/daemon.json'
        info = engine.info
        advice = overlay_remedy(is_rootless=info.is_rootless) if info.is_podman else docker
        return warn(f"{driver}: {_SLOW_DRIVERS[driver]}", advice)
    return ok(driver)


async def check_limits(engine: Engine) -> Finding:
    output = await run_probe(engine, LIMITS_SCRIPT, limit_sec=30, **limits_host_config(_LIMITS, engine))
    return judge_limits(read_limits(output.text), engine.info.cgroup_version, is_rootless=engine.info.is_rootless)


def judge_limits(seen: Mapping[str, str], version: str, *, is_rootless: bool = False) -> Finding:
    """Judge the limits in a container's cgroup, and the outcomes of a memory hog and of many processes."""
    states, wrong = limit_states(seen, _LIMITS), []
    if states["memory"] != LimitState.IN_FORCE:
        wrong.append(f"memory is {seen.get('memory') or 'unknown'} bytes instead of {_MEMORY_MB << 20}")
    if seen.get("hog") == str((3 * _MEMORY_MB - 8) << 20):
        wrong.append(f"{3 * _MEMORY_MB} MB were used where {_MEMORY_MB} were allowed")
    if states["swap"] == LimitState.NOT_IN_FORCE:
        wrong.append("swap can be used beyond the memory limit")
    if states["pids"] != LimitState.IN_FORCE:
        wrong.append(f"pids is {seen.get('pids') or 'unknown'} instead of {_PIDS}")
    if seen.get("forks") == "all":
        wrong.append(f"{3 * _PIDS} processes ran where {_PIDS} were allowed")
    if states["cpus"] != LimitState.IN_FORCE:
        wrong.append(f"cpu is {seen.get('cpu') or 'unknown'} instead of {_CPUS:g}")
    if wrong:
        what = f"cgroup v{version}: limits are not enforced: {'; '.join(wrong)}"
        if is_rootless:
            return warn(what, "a rootless engine has limits only with cgroup v2 and controllers that systemd delegates")
        return fail(what, "enable these cgroup controllers for the engine")
    return ok(f"cgroup v{version}: memory, pids and cpus are limited; a memory hog and a fork bomb were stopped")


async def check_tools(engine: Engine, name: str | None = None) -> Finding:
    name = name or tools_volume_name()
    try:
        await engine.call(engine.api.inspect_volume, name)
    except EngineError as error:
        if error.status == 404:
            return warn(f"volume {name} does not exist yet: the first run builds it, which takes a minute", _SETUP)
        raise
    try:
        output = await run_probe(engine, _TMUX, tools=name)
    except EngineError as error:
        if error.status in (404, 409):
            raise  # the container was removed, which says nothing about the volume
        # In an empty volume, left by a killed setup, the mount point is missing.
        output = ProbeOutput(-1, str(error))
    if output.exit_code != 0:
        return fail(
            f"tmux in volume {name} does not start: {output.text[-_MAX_OUTPUT:]}",
            f"{_SETUP}, which repairs it",
        )
    return ok(f"volume {name}, tmux {output.text} starts")


async def check_network(engine: Engine, reached: tuple[str, int] = REACHED) -> Finding:
    found = await engine.call(engine.api.networks, names=[f"^{NETWORK}$"])
    if not found:
        return warn(f"the bridge {NETWORK} does not exist yet: the first run creates it", _SETUP)
    options = found[0].get("Options") or {}
    host, port = reached
    output = await run_probe(
        engine, f"timeout 5 bash -c 'exec 3<>/dev/tcp/{host}/{port}' && echo reached", network_mode=NETWORK
    )
    if not output.text.endswith("reached"):
        if not await in_thread(_host_reaches, host, port):
            return warn(f"{host}:{port} cannot be reached from here or from a container", _OFFLINE)
        return fail(f"this machine reaches {host}:{port}, but a container on {NETWORK} does not", _NO_ROUTE)
    if options.get("com.docker.network.bridge.enable_icc") != "false":
        advice = "remove that network ('tbench clean --all') and run 'tbench setup'"
        if engine.info.is_podman:
            advice = "Podman cannot isolate them: use --concurrency 1 if trials must not reach each other"
        return warn(f"containers on {NETWORK} reach the outside, but also each other", advice)
    return ok(f"a container on {NETWORK} reaches {host}:{port}; containers cannot reach each other")


async def check_build_network(engine: Engine) -> Finding:
    """Check the engine's default bridge, on which images are built."""
    try:
        output = await run_probe(engine, "echo started", network_mode="bridge")
    except EngineError as error:
        what = f"no container starts on the engine's default bridge: {one_line(str(error), 200)}"
        remedy = podman_remedy(str(error), is_rootless=engine.info.is_rootless) if engine.info.is_podman else ""
        return fail(what, remedy or "images cannot be built: restart the engine, which creates that bridge again")
    if output.text == "started":
        return ok("a container starts on the engine's default bridge")
    printed = output.text[-_MAX_OUTPUT:]
    return fail(f"a container on the engine's default bridge printed {printed!r}", "read the engine's log")


_OFFLINE = "tasks that download files will fail without a proxy (--container-proxy): exclude them, or provide a proxy"
_NO_ROUTE = "check that net.ipv4.ip_forward is 1 and that the firewall (iptables FORWARD, ufw, VPN) lets bridges out"


async def check_dns(engine: Engine, host: str = REACHED[0]) -> Finding:
    if not await engine.call(engine.api.networks, names=[f"^{NETWORK}$"]):
        return skipped(f"the bridge {NETWORK} does not exist yet")
    output = await run_probe(engine, f"timeout 6 getent hosts {host} && echo found", network_mode=NETWORK)
    if output.text.endswith("found"):
        return ok(f"a container resolves {host}")
    if not await in_thread(_host_reaches, host, None):
        return warn(f"{host} cannot be resolved here or in a container", _OFFLINE)
    file = "/etc/docker/daemon.json"
    setting = '{"dns": ["IP"]}'
    if engine.info.is_podman:
        setting = 'dns_servers = ["IP"] under [containers]'
        file = f"{'~/.config' if engine.info.is_rootless else '/etc'}/containers/containers.conf"
    return fail(
        f"this machine resolves {host}, but a container does not",
        f"set {setting} in {file} to a name server that containers can reach (not 127.0.0.53)",
    )


def _host_reaches(host: str, port: int | None) -> bool:
    try:
        if port is None:
            return bool(socket.getaddrinfo(host, None))
        with socket.create_connection((host, port), 5):
            return True
    except OSError:
        return False
