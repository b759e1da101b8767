"""Builds an image of a directory, by the engine's own builder or by BuildKit."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from tbench.sandbox.docker.labels import LABEL_IMAGE
from tbench.text import one_line


class BuildFailed(Exception):
    """A build ended without an image; the message is the builder's last word."""


def build(
    api: Any,
    context: Path,
    tag: str,
    *,
    limit_sec: float,
    labels: dict[str, str],
    log: list[str],
    network: str | None = None,
    no_cache: bool = False,
) -> None:
    """Build with the engine's own builder, through the SDK; output goes to `log`. Raises BuildFailed, TimeoutError.

    Its steps are on `network`, by default on the engine's own bridge; with `no_cache` every one is done.
    """
    ends = time.monotonic() + limit_sec
    # The request's timeout bounds a silent step; a client that goes away makes the engine stop.
    stream = api.build(
        path=str(context),
        tag=tag,
        rm=True,
        forcerm=True,
        decode=True,
        timeout=int(limit_sec) + 1,
        labels=labels,
        network_mode=network,
        nocache=no_cache,
    )
    try:
        for message in stream:
            log.append(message.get("stream") or f"{message.get('status', '')}\n")
            if "error" in message:
                raise BuildFailed(message["error"])
            if time.monotonic() > ends:
                raise TimeoutError(f"longer than {limit_sec:.0f} s")
    finally:
        stream.close()


def build_with_buildkit(
    api: Any, context: Path, tag: str, *, limit_sec: float, log: list[str], no_cache: bool = False
) -> None:
    """Build a Dockerfile with heredocs or RUN --mount, by the docker client, which alone drives BuildKit."""
    client = shutil.which("docker")
    if client is None:
        raise BuildFailed("this Dockerfile needs BuildKit (heredoc or --mount): install the docker client with buildx")
    options = ["--progress=plain", "-t", tag, "--label", f"{LABEL_IMAGE}=task", *(["--no-cache"] if no_cache else [])]
    done = subprocess.run(
        [client, "build", *options, str(context)],
        env={**os.environ, "DOCKER_BUILDKIT": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=limit_sec,
        check=False,
    )
    text = done.stdout.decode("utf-8", "replace")
    log.append(text)
    if done.returncode:
        hint = "; it needs BuildKit: install docker-buildx" if "buildx" in text else ""
        raise BuildFailed(f"docker build ended with {done.returncode}{hint}")


def last_lines(log: list[str]) -> str:
    """The builder's last words, for a message."""
    chatter = (" --->", "Removing intermediate container")
    last = [line for line in "".join(log).splitlines() if line.strip() and not line.startswith(chatter)][-2:]
    return f"last lines: {one_line(' | '.join(last), 200)}"
