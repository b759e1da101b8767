"""Builds an image of a directory, by the engine's own builder or by BuildKit, and names it by what it is built of."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from tbench.compose.project import ImageBuild
from tbench.sandbox.docker.labels import LABEL_IMAGE
from tbench.tasks.environment import Environment
from tbench.text import one_line

_TRIES = 3
"""How often an image is built whose cached steps are removed meanwhile."""
_IMAGE_GONE = re.compile(r"(?<!@)sha256:[0-9a-f]{64}|layer does not exist")
"""In an error: an id that no Dockerfile names, so one that the builder had of the engine a moment before."""


class BuildFailed(Exception):
    """A build ended without an image; the message is the builder's last word."""


class CacheGone(BuildFailed):
    """A build went on from an image of the cache that somebody else removed under it, such as another run."""


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
    wanted: ImageBuild | None = None,
) -> None:
    """Build with the engine's own builder, through the SDK; output goes to `log`. Raises BuildFailed, TimeoutError.

    Its steps are on `network`, by default on the engine's own bridge; with `no_cache` every one is done. `wanted` names
    the Dockerfile, its arguments and its stage. What the builder lost of its cache under it is built again, within the
    same limit.
    """
    ends = time.monotonic() + limit_sec
    retrying = Retrying(retry=retry_if_exception_type(CacheGone), stop=stop_after_attempt(_TRIES), reraise=True)
    with _dockerfile(context, wanted) as dockerfile:
        retrying(
            _build,
            api,
            limit_sec,
            ends,
            log,
            path=str(context),
            tag=tag,
            labels=labels,
            network_mode=network,
            nocache=no_cache,
            dockerfile=dockerfile,
            buildargs=dict(wanted.args) if wanted else None,
            target=wanted.target if wanted else None,
        )


@contextmanager
def _dockerfile(context: Path, wanted: ImageBuild | None) -> Iterator[str | None]:
    """Path of the Dockerfile, relative to the context or absolute; None for `Dockerfile`."""
    if wanted is None or wanted.inline is None:
        yield str((context / wanted.dockerfile).resolve()) if wanted and wanted.dockerfile else None
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "Dockerfile"
        path.write_text(wanted.inline, encoding="utf-8")
        yield str(path)


def _build(api: Any, limit_sec: float, ends: float, log: list[str], **options: Any) -> None:
    # The request's timeout bounds a silent step; a client that goes away makes the engine stop.
    left_sec = max(int(ends - time.monotonic()), 0) + 1
    stream = api.build(rm=True, forcerm=True, decode=True, timeout=left_sec, **options)
    try:
        for message in stream:
            log.append(message.get("stream") or f"{message.get('status', '')}\n")
            if "error" in message:
                raise (CacheGone if _IMAGE_GONE.search(message["error"]) else BuildFailed)(message["error"])
            if time.monotonic() > ends:
                raise TimeoutError(f"longer than {limit_sec:.0f} s")
    finally:
        stream.close()


def build_with_buildkit(
    api: Any,
    context: Path,
    tag: str,
    *,
    limit_sec: float,
    log: list[str],
    no_cache: bool = False,
    wanted: ImageBuild | None = None,
) -> None:
    """Build a Dockerfile with heredocs, mounts or modes by the docker client, which alone drives BuildKit."""
    client = shutil.which("docker")
    if client is None:
        raise BuildFailed(
            "this Dockerfile needs BuildKit (heredoc, --mount or --chmod): install the docker client with buildx"
        )
    options = ["--progress=plain", "-t", tag, "--label", f"{LABEL_IMAGE}=task", *(["--no-cache"] if no_cache else [])]
    for name, value in (wanted.args if wanted else {}).items():
        options += ["--build-arg", f"{name}={value}"]
    options += ["--target", wanted.target] if wanted and wanted.target else []
    with _dockerfile(context, wanted) as dockerfile:
        done = subprocess.run(
            [client, "build", *options, *(["-f", dockerfile] if dockerfile else []), str(context)],
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


def tag_of_unchanged(environment: Environment) -> str:
    """The build tag of the files that the task's hash names. Raises TrialError(task_changed)."""
    tag = build_tag(environment)
    environment.require_unchanged()
    return tag


def build_tag(environment: Environment) -> str:
    """The tag `tbench/<task>:<hash>` of paths, modes and bytes of environment/: the same content is built once."""
    digest = hashlib.sha256()
    root = environment.path
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root).as_posix()
        executable = path.is_file() and os.access(path, os.X_OK)
        digest.update(f"{relative}\0{'x' if executable else '-'}\0".encode())
        if path.is_symlink():
            digest.update(str(path.readlink()).encode())
        elif path.is_file():
            with path.open("rb") as file:  # of any size: only its digest is held
                digest.update(hashlib.file_digest(file, "sha256").digest())
    if environment.build is not None and environment.build != ImageBuild(environment.build.context):
        digest.update(repr(environment.build).encode())
    slug = re.sub(r"[^a-z0-9]+", "-", environment.image_name.lower()).strip("-") or "task"
    return f"tbench/{slug}:{digest.hexdigest()[:16]}"
