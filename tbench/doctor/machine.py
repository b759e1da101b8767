"""Checks of this machine itself: room on its disks, certificates, a clock that is right."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import ssl
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import certifi

from tbench.doctor import Check, CheckResult, fail, ok, skipped, warn
from tbench.doctor.containers import run_probe
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.threads import in_thread

LOW_GB, NONE_GB = 10.0, 1.0
"""Free space below which a long run may fill the disk, and below which hardly any run fits."""
TLS_HOSTS = ("pypi.org", "deb.debian.org", "github.com")
"""Hosts that verifiers download from."""
_CONNECT_SEC = 5.0
_TIME_ERROR = 5
_APART_SEC = 2.0


def checks(engine: Engine | None, runs: Path) -> list[Check]:
    made = [Check("disk of runs", partial(look_at_runs, runs)), Check("certificates", look_at_certificates, 30)]
    return made if engine is None else [Check("disk of engine", partial(look_at_engine_disk, engine)), *made]


async def look_at_runs(runs: Path) -> CheckResult:
    return await in_thread(_look_at_runs, runs)


def _look_at_runs(runs: Path) -> CheckResult:
    """Check that run directories can be written, and that there is room for them."""
    place = next(path for path in (runs.absolute(), *runs.absolute().parents) if path.is_dir())
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".tbench-doctor-"):
            pass
    except OSError as error:
        return fail(f"{place} cannot be written: {error.strerror}", "name another directory with --output")
    return judge_disk(str(place), _free_gb(place), _free_inodes(place), "delete old run directories, or use --output")


async def look_at_engine_disk(engine: Engine) -> CheckResult:
    """Check the room on the engine's disk; a container is asked where its directory is not on this machine."""
    info = await engine.call(engine.api.info, deadline_sec=10)
    root = Path(info.get("DockerRootDir") or "/nowhere")
    # Also with the machine's socket in a container, whose own directory of that name would be another.
    is_here = engine.shares_kernel and info.get("Name") == socket.gethostname()
    advice = "remove images that nobody needs ('tbench clean', 'docker system df', 'docker image prune')"
    if is_here and await in_thread(root.is_dir):
        return await in_thread(lambda: judge_disk(str(root), _free_gb(root), _free_inodes(root), advice))
    try:
        output = await run_probe(engine, "df -Pk / | tail -n 1")
        free_gb = int(output.text.split()[3]) / (1 << 20)
    except (EngineError, IndexError, ValueError):
        return skipped(f"{root} is not on this machine, and no container could be asked")
    return judge_disk(f"{root} (on the engine's machine)", free_gb, None, advice)


def judge_disk(where: str, free_gb: float, free_inodes: float | None, advice: str) -> CheckResult:
    """Judge the room on a disk. `free_inodes` is a share of all; None where the file system has no such limit."""
    what = f"{where}: {free_gb:.1f} GB free"
    if free_inodes is not None and free_inodes < 0.05:
        what += f", {100 * free_inodes:.0f} % of its inodes"
    if free_gb < NONE_GB or (free_inodes is not None and free_inodes < 0.01):
        return fail(what, advice)
    if free_gb < LOW_GB or (free_inodes is not None and free_inodes < 0.05):
        return warn(what, advice)
    return ok(what)


def _free_gb(path: Path) -> float:
    return shutil.disk_usage(path).free / (1 << 30)


def _free_inodes(path: Path) -> float | None:
    found = os.statvfs(path)
    return found.f_favail / found.f_files if found.f_files else None


async def look_at_certificates() -> CheckResult:
    public = partial(ssl.create_default_context, cafile=certifi.where())
    return await in_thread(judge_certificates, TLS_HOSTS, 443, ssl.create_default_context, public)


def judge_certificates(
    hosts: tuple[str, ...], port: int, own: Callable[[], ssl.SSLContext], public: Callable[[], ssl.SSLContext]
) -> CheckResult:
    """Verify a host's certificate with this machine's CAs, and with the public ones alone, which images bring along."""
    for host in hosts:
        try:
            trouble, foreign = _handshake(host, port, own()), _handshake(host, port, public())
        except OSError:
            continue  # not to be reached: another one may be
        if trouble:
            advice = "install ca-certificates; behind a proxy that opens TLS, add its CA (update-ca-certificates)"
            return fail(f"{host}: its certificate cannot be verified: {trouble}", advice)
        if foreign:
            return warn(
                f"{host} is verified here, but not with the public CAs: something on the way opens TLS",
                "containers do not know that CA, so downloads over HTTPS fail in them: put it into the tasks' images",
            )
        return ok(f"{host}'s certificate is verified, also with the public CAs")
    return skipped(f"none of {', '.join(hosts)} can be reached directly")


def _handshake(host: str, port: int, context: ssl.SSLContext) -> str:
    """Why the certificate could not be verified; empty where it was. Raises OSError when nobody is reached."""
    with socket.create_connection((host, port), _CONNECT_SEC) as connection:
        try:
            with context.wrap_socket(connection, server_hostname=host):
                return ""
        except ssl.SSLCertVerificationError as error:
            return error.verify_message


async def look_at_clock(engine: Engine | None) -> CheckResult:
    """Check that something sets the clock, and that containers have the same: make and TLS rely on it."""
    notes = []
    if engine is not None:
        apart = await _container_clock(engine)
        if apart is not None and abs(apart) > _APART_SEC:
            return fail(
                f"a container's clock is {apart:+.0f} s from this machine's",
                "set both clocks with NTP; on a desktop, restart the engine's virtual machine",
            )
        notes = [] if apart is None else ["the same in a container"]
    synchronised = is_clock_synchronised()
    if synchronised is False:
        what = "; ".join(["the kernel does not know of anybody who sets the clock", *notes])
        return warn(what, "run an NTP client (chrony, systemd-timesyncd), unless the hypervisor sets the clock")
    return ok("; ".join(["set by NTP" if synchronised else "nothing is known against it", *notes]))


async def _container_clock(engine: Engine) -> float | None:
    """Seconds by which a container's clock is ahead of ours; None where no container can be asked."""
    try:
        began = time.time()
        output = await run_probe(engine, "date +%s")
        ended = time.time()
        theirs = int(output.text)
    except (EngineError, ValueError):
        return None
    # It was asked somewhere between the two, and cuts to whole seconds.
    if theirs + 1 < began:
        return theirs + 1 - began
    return max(0.0, theirs - ended)


def is_clock_synchronised() -> bool | None:
    """Whether the kernel knows that something sets the clock (adjtimex); None where it cannot be asked."""
    try:
        adjtimex = ctypes.CDLL(None).adjtimex
    except (AttributeError, OSError):
        return None
    buffer = ctypes.create_string_buffer(512)  # struct timex, all zero: only read
    state = adjtimex(buffer)
    return None if state < 0 else bool(state != _TIME_ERROR)
