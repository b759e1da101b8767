"""Checks of this machine: free disk space, certificates, and the clock."""

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

from tbench.doctor import Check, Finding, fail, ok, skipped, warn
from tbench.doctor.containers import run_probe
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.image import FREE_MB
from tbench.threads import in_thread

LOW_GB, NONE_GB = 10.0, 1.0
"""Free space below which a long run may fill the disk (a warning), and below which hardly any run fits (a failure)."""
_NO_IMAGE_GB = FREE_MB / 1024
TLS_HOSTS = ("pypi.org", "deb.debian.org", "github.com")
"""Hosts that verifiers download from."""
_CONNECT_SEC = 5.0
_TIME_ERROR = 5
_APART_SEC = 2.0


def checks(engine: Engine | None, runs: Path) -> list[Check]:
    made = [Check("disk of runs", partial(check_runs, runs)), Check("certificates", check_certificates, 30)]
    return made if engine is None else [Check("disk of engine", partial(check_engine_disk, engine)), *made]


async def check_runs(runs: Path) -> Finding:
    return await in_thread(_check_runs, runs)


def _check_runs(runs: Path) -> Finding:
    """Check that run directories can be written, and the free space for them."""
    folder = next(path for path in (runs.absolute(), *runs.absolute().parents) if path.is_dir())
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".tbench-doctor-"):
            pass
    except OSError as error:
        return fail(f"{folder} cannot be written: {error.strerror}", "use another directory with --output")
    advice = "delete old run directories, or use --output"
    return judge_disk(str(folder), _free_gb(folder), _free_inodes(folder), advice)


async def check_engine_disk(engine: Engine) -> Finding:
    """Check the free space on the engine's disk, from a container if the disk is not on this machine."""
    info = await engine.call(engine.api.info, deadline_sec=10)
    root = Path(info.get("DockerRootDir") or "/nowhere")
    # By host name, since in a container with the machine's socket the same path is another directory.
    is_here = engine.shares_kernel and info.get("Name") == socket.gethostname()
    advice = "remove unused images ('tbench clean', 'docker system df', 'docker image prune')"
    if is_here and await in_thread(root.is_dir):
        return await in_thread(lambda: judge_disk(str(root), _free_gb(root), _free_inodes(root), advice, _NO_IMAGE_GB))
    try:
        output = await run_probe(engine, "df -Pk / | tail -n 1")
        free_gb = int(output.text.split()[3]) / (1 << 20)
    except (EngineError, IndexError, ValueError):
        return skipped(f"{root} is not on this machine, and no container could check it")
    return judge_disk(f"{root} (on the engine's machine)", free_gb, None, advice, _NO_IMAGE_GB)


def judge_disk(where: str, free_gb: float, free_inodes: float | None, advice: str, none_gb: float = NONE_GB) -> Finding:
    """Judge the free space of a disk. `free_inodes` is a fraction of all; None if the file system has no limit."""
    what = f"{where}: {free_gb:.1f} GB free"
    if free_inodes is not None and free_inodes < 0.05:
        what += f", {100 * free_inodes:.0f} % of its inodes"
    if free_gb < none_gb or (free_inodes is not None and free_inodes < 0.01):
        return fail(what, advice)
    if free_gb < LOW_GB or (free_inodes is not None and free_inodes < 0.05):
        return warn(what, advice)
    return ok(what)


def _free_gb(path: Path) -> float:
    return shutil.disk_usage(path).free / (1 << 30)


def _free_inodes(path: Path) -> float | None:
    found = os.statvfs(path)
    return found.f_favail / found.f_files if found.f_files else None


async def check_certificates() -> Finding:
    public = partial(ssl.create_default_context, cafile=certifi.where())
    return await in_thread(judge_certificates, TLS_HOSTS, 443, ssl.create_default_context, public)


def judge_certificates(
    hosts: tuple[str, ...], port: int, own: Callable[[], ssl.SSLContext], public: Callable[[], ssl.SSLContext]
) -> Finding:
    """Verify a host's certificate with this machine's CAs, and with the public CAs only, which images contain."""
    for host in hosts:
        try:
            trouble, foreign = _handshake(host, port, own()), _handshake(host, port, public())
        except OSError:
            continue  # unreachable; try the next one
        if trouble:
            advice = "install ca-certificates; behind a proxy that intercepts TLS, add its CA (update-ca-certificates)"
            return fail(f"{host}: its certificate cannot be verified: {trouble}", advice)
        if foreign:
            return warn(
                f"{host} is verified here, but not with the public CAs: a proxy in between intercepts TLS",
                "containers do not have its CA, so that HTTPS downloads fail in them: add it to the tasks' images",
            )
        return ok(f"{host}'s certificate is verified, also with the public CAs only")
    return skipped(f"none of {', '.join(hosts)} can be reached directly")


def _handshake(host: str, port: int, context: ssl.SSLContext) -> str:
    """Return why the certificate could not be verified, or an empty text. Raises OSError if the host is unreachable."""
    with socket.create_connection((host, port), _CONNECT_SEC) as connection:
        try:
            with context.wrap_socket(connection, server_hostname=host):
                return ""
        except ssl.SSLCertVerificationError as error:
            return error.verify_message


async def check_clock(engine: Engine | None) -> Finding:
    """Check that the clock is synchronised, and that containers have the same time; make and TLS rely on it."""
    notes = []
    if engine is not None:
        apart = await _container_clock(engine)
        if apart is not None and abs(apart) > _APART_SEC:
            return fail(
                f"a container's clock differs from this machine's by {apart:+.0f} s",
                "set both clocks with NTP; on a desktop, restart the engine's virtual machine",
            )
        notes = [] if apart is None else ["the same in a container"]
    synchronised = is_clock_synchronised()
    if synchronised is False:
        what = "; ".join(["the clock is not synchronised, as far as the kernel knows", *notes])
        return warn(what, "run an NTP client (chrony, systemd-timesyncd), unless the hypervisor sets the clock")
    return ok("; ".join(["set by NTP" if synchronised else "its synchronisation is unknown", *notes]))


async def _container_clock(engine: Engine) -> float | None:
    """Return the seconds by which a container's clock is ahead of ours; None if no container starts."""
    try:
        began = time.time()
        output = await run_probe(engine, "date +%s")
        ended = time.time()
        theirs = int(output.text)
    except (EngineError, ValueError):
        return None
    # Read at some time between the two, and truncated to whole seconds.
    if theirs + 1 < began:
        return theirs + 1 - began
    return max(0.0, theirs - ended)


def is_clock_synchronised() -> bool | None:
    """Whether the kernel's clock is synchronised (adjtimex); None if unknown."""
    try:
        adjtimex = ctypes.CDLL(None).adjtimex
    except (AttributeError, OSError):
        return None
    buffer = ctypes.create_string_buffer(512)  # struct timex; all zero means to read only
    state = adjtimex(buffer)
    return None if state < 0 else bool(state != _TIME_ERROR)
