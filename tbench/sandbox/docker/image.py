"""Finds or pulls the images of tasks, or builds them, once per content of environment/."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from tbench.errors import TrialError
from tbench.results import ImageOrigin, Stage
from tbench.sandbox.docker.build import BuildFailed, build, build_with_buildkit, last_lines
from tbench.sandbox.docker.dockerfile import (
    base_images,
    fetches_by_itself,
    needs_buildkit,
    read_dockerfile,
    why_not_closed,
)
from tbench.sandbox.docker.engine import Engine, EngineError, EngineUnreachable
from tbench.sandbox.docker.labels import LABEL_IMAGE, LABEL_ORIGINAL
from tbench.tasks.task import Task
from tbench.text import one_line

_PULL_SEC = 1800.0
_FREE_MB = 4096.0
"""Free space on the engine's disk below which nothing is built or pulled. Bundled tasks' images take up to 0.6 GB,
those of large tasks several; containers write there as well."""
_DISK_FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_BUILDS_AT_ONCE = 2
_NO_ROUTE = re.compile(
    r"no such host|dial tcp|connection refused|i/o timeout|Temporary failure|TLS handshake|did not answer"
    r"|Client\.Timeout",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Image:
    """An image that the engine has, and what its configuration says."""

    id: str
    reference: str
    user: str
    workdir: str
    has_locale: bool
    has_home: bool = False
    original: str = ""
    """Id of the image that a snapshot's sandbox was made of; empty for what is no snapshot."""
    triggers: tuple[str, ...] = ()
    """Instructions that a build begins with whose FROM names this image."""
    digests: tuple[str, ...] = ()
    """Its names in registries, with digests: `name@sha256:…`."""
    origin: ImageOrigin | None = None
    """Where a task's image came from; None for other images."""

    @classmethod
    def from_inspection(cls, reference: str, inspection: dict[str, Any]) -> Image:
        config = inspection.get("Config") or {}
        names = {variable.partition("=")[0] for variable in config.get("Env") or ()}
        return cls(
            id=inspection["Id"],
            reference=reference,
            user=config.get("User") or "",
            workdir=config.get("WorkingDir") or "/",
            has_locale=bool(names & {"LANG", "LC_ALL", "LC_CTYPE"}),
            triggers=tuple(config.get("OnBuild") or ()),
            has_home="HOME" in names,
            original=(config.get("Labels") or {}).get(LABEL_ORIGINAL, ""),
            digests=tuple(inspection.get("RepoDigests") or ()),
        )

    def published(self, how: Literal["pulled", "present"]) -> Image:
        """This image as one that a task names."""
        name = name_and_tag(self.reference)[0].partition("@")[0]
        # The engine may know one image by several names; a short name stands there in full with Podman.
        own = [each for each in self.digests if each.partition("@")[0].endswith(name)] or list(self.digests)
        digest = own[0].partition("@")[2] if own else None
        return replace(self, origin=ImageOrigin(how=how, reference=self.reference, digest=digest))

    def built(self, how: Literal["built", "present"]) -> Image:
        """This image as one that was built of a task; the hash of environment/ is its tag."""
        built_from = self.reference.rpartition(":")[2]
        return replace(self, origin=ImageOrigin(how=how, reference=self.reference, built_from=built_from))


def is_disk_full(error: BaseException) -> bool:
    """Whether the engine's words say that its disk is full."""
    return _DISK_FULL.search(str(error)) is not None


ImageState = Literal["present", "to be pulled", "to be built"]
ClosedNetwork = Callable[[], AbstractAsyncContextManager[str]]
"""Makes a network for one build from which the engine's host cannot be reached; gives its name on the engine."""


class Images:
    """Gives each task its image; the trials of one task wait for a single build."""

    def __init__(
        self,
        engine: Engine,
        *,
        build: bool = False,
        no_build_cache: bool = False,
        pull_sec: float = _PULL_SEC,
        free_mb: float = _FREE_MB,
        log_dir: Path | None = None,
        say: Callable[[str], None] = lambda _: None,
        closed_network: ClosedNetwork | None = None,
    ) -> None:
        """With `closed_network` all builds are on such a network, and what could not be kept to it is not built.

        With `build` nothing is pulled; with `no_build_cache` what is not pulled is built anew, without the engine's
        cache.
        """
        self._engine = engine
        self._force_build = build
        self._no_cache = no_build_cache
        self._pull_sec = pull_sec
        self._free_mb = free_mb
        self._log_dir = log_dir
        self._say = say
        self._closed_network = closed_network
        self._locks: dict[str, asyncio.Lock] = {}
        self._ready: dict[str, Image] = {}
        self._failed: dict[str, TrialError] = {}
        self._unreachable: set[str] = set()
        self._reachable: set[str] = set()
        self._asking: dict[str, asyncio.Lock] = {}
        self._building = asyncio.Semaphore(_BUILDS_AT_ONCE)

    async def get(self, task: Task) -> Image:
        """The task's image, found, pulled or built.

        Raises TrialError: image_unavailable, image_build_failed, image_build_timeout, image_no_space,
        engine_unreachable, task_changed.

        A failure that another attempt would repeat is remembered for the run: the other seeds of that task fail at
        once with the same words.
        """
        async with self._locks.setdefault(task.name, asyncio.Lock()):
            if task.name in self._failed:
                known = self._failed[task.name]
                raise TrialError(known.type, str(known))
            if task.name not in self._ready:
                try:
                    self._ready[task.name] = await self._resolve(task)
                except TrialError as error:
                    if not error.kind.retryable:
                        self._failed[task.name] = error
                    raise
            return self._ready[task.name]

    async def _resolve(self, task: Task) -> Image:
        published = task.file.environment.docker_image
        if published and not self._force_build:
            if (image := await self.find(published)) is not None:
                return image.published("present")
            if (image := await self._pull(published, task)) is not None:
                return image.published("pulled")
        # In a thread: hashing some megabytes must not hold up the other trials' terminals.
        tag = await asyncio.to_thread(_tag_of_unchanged, task)
        if not task.dockerfile.is_file():
            raise TrialError(
                "image_unavailable", f"{task.name}: {published} cannot be pulled and there is no Dockerfile"
            )
        if not self._builds_anew and (image := await self.find(tag)) is not None:
            return image.built("present")
        if self._closed_network is not None:
            await self._require_closable(task)
        async with self._building:
            await self._need_space(task)
            return (await self._build(task, tag)).built("built")

    @property
    def _builds_anew(self) -> bool:
        """Whether an image that was built before is no reason not to build it."""
        return self._force_build or self._no_cache

    async def _require_closable(self, task: Task) -> None:
        """Check that nothing in the task's build goes round the network that it gets. Raises TrialError."""
        dockerfile = read_dockerfile(task)
        why = why_not_closed(dockerfile)
        for name in sorted(filter(None, base_images(dockerfile))) if why is None else ():
            if (base := await self.find(name)) is None:
                await self._pull_base(name, task)
                base = await self.find(name)
            if base is not None and (line := fetches_by_itself(base.triggers)) is not None:
                why = f"its {name} brings along {line!r}, with which the engine itself fetches a URL"
        if why is not None:
            raise TrialError(
                "image_build_failed",
                f"{task.dockerfile}: --block-host does not build this: {why}; build it once without --block-host",
            )

    async def _pull_base(self, name: str, task: Task) -> None:
        await self._need_space(task)
        self._say(f"{task.name}: pulling {name}")
        try:
            await pull(self._engine, name, self._pull_sec)
        except EngineError as error:
            raise TrialError("image_unavailable", f"{task.dockerfile}: FROM {name}: {error}") from error

    async def foresee(self, task: Task) -> ImageState:
        """What `get` would do for the task's image, as far as that can be known without doing it. Raises TrialError."""
        published = task.file.environment.docker_image
        if published and not self._force_build:
            # Where it cannot be pulled, it is built.
            return "present" if await self.find(published) else "to be pulled"
        tag = await asyncio.to_thread(build_tag, task)
        return "present" if not self._builds_anew and await self.find(tag) else "to be built"

    async def _need_space(self, task: Task) -> None:
        """Check the free space of the engine's disk, if it can be seen. Raises TrialError(image_no_space)."""
        root = self._engine.info.root
        try:
            free_mb = (await asyncio.to_thread(shutil.disk_usage, root)).free / (1 << 20)
        except OSError:
            return  # the engine is elsewhere
        if self._engine.is_local and free_mb < self._free_mb:
            raise TrialError(
                "image_no_space",
                f"{task.name}: {root} has {free_mb:.0f} MB free, less than {self._free_mb:.0f}: "
                "'tbench clean --all' and 'docker system prune' make room",
            )

    async def find(self, reference: str) -> Image | None:
        """The image by its name or id; None if the engine lacks it."""
        try:
            return Image.from_inspection(reference, await self._engine.call(self._engine.api.inspect_image, reference))
        except EngineError as error:
            if error.status == 404:
                return None
            kind = "engine_unreachable" if error.status is None else "image_unavailable"
            raise TrialError(kind, f"{reference}: {error}", stage=Stage.IMAGE) from error

    async def _pull(self, reference: str, task: Task) -> Image | None:
        registry = _registry(reference)
        if registry not in self._reachable:
            # Only the first trial finds out whether the registry answers.
            async with self._asking.setdefault(registry, asyncio.Lock()):
                if registry in self._unreachable:
                    return None
                if registry not in self._reachable:
                    return await self._pull_from(registry, reference, task)
        return await self._pull_from(registry, reference, task)

    async def _pull_from(self, registry: str, reference: str, task: Task) -> Image | None:
        await self._need_space(task)
        self._say(f"{task.name}: pulling {reference}")
        try:
            await pull(self._engine, reference, self._pull_sec)
        except EngineError as error:
            if is_disk_full(error):
                raise TrialError("image_no_space", f"{task.name}: pulling {reference}: {error}") from error
            why = one_line(str(error), 120)
            if _NO_ROUTE.search(str(error)):
                self._unreachable.add(registry)
                self._reachable.discard(registry)
                self._say(f"registry {registry} cannot be reached ({why}); images are built instead")
            else:
                self._say(f"{task.name}: {reference} cannot be pulled ({why}); building instead")
            return None
        self._reachable.add(registry)
        return await self.find(reference)

    async def _build(self, task: Task, tag: str) -> Image:
        self._say(f"{task.name}: building its image")
        async with self._closed_network() if self._closed_network else nullcontext() as network:
            await self._build_on(network, task, tag)
        image = await self.find(tag)
        if image is None:
            raise TrialError("image_build_failed", f"{task.name}: the build ended but left no image {tag}")
        return image

    async def _build_on(self, network: str | None, task: Task, tag: str) -> None:
        limit_sec = task.file.environment.build_timeout_sec
        if network is None and needs_buildkit(read_dockerfile(task)):
            builder: Callable[..., None] = build_with_buildkit
        else:
            builder = partial(build, labels={LABEL_IMAGE: "task"}, network=network)
        builder = partial(builder, no_cache=self._no_cache)
        log: list[str] = []
        started = time.monotonic()
        try:
            await self._engine.call(
                partial(builder, limit_sec=limit_sec, log=log),
                self._engine.api,
                task.path / "environment",
                tag,
                deadline_sec=limit_sec + 30,
            )
        except (BuildFailed, EngineError, subprocess.SubprocessError, TimeoutError) as error:
            if time.monotonic() - started >= limit_sec:
                why = f"{task.dockerfile}: the build took longer than {limit_sec:.0f} s; {last_lines(log)}"
                raise TrialError("image_build_timeout", why) from error
            why = f"{task.dockerfile}: {one_line(str(error), 300)}; {last_lines(log)}"
            raise TrialError(_why_not_built(error, log), why, stage=Stage.IMAGE) from error
        finally:
            self._keep_log(task, log)

    def _keep_log(self, task: Task, log: list[str]) -> None:
        if self._log_dir is not None:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            (self._log_dir / f"{task.name}.log").write_text("".join(log), encoding="utf-8", errors="replace")


def _registry(reference: str) -> str:
    first, slash, _ = reference.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else "docker.io"


async def pull(engine: Engine, reference: str, limit_sec: float) -> None:
    """Pull an image. Raises EngineError, also for a failure within an answer that began with 200, as Podman's do."""

    def pulling() -> None:
        name, tag = name_and_tag(reference)
        for message in engine.api.pull(name, tag, stream=True, decode=True):
            if "error" in message:
                raise EngineError(str(message["error"]))

    await engine.call(pulling, deadline_sec=limit_sec)


def name_and_tag(reference: str) -> tuple[str, str | None]:
    """Split a reference into name and tag: of a name without a tag the SDK would pull all tags."""
    if "@" in reference:
        return reference, None
    name, colon, tag = reference.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (reference, "latest")


def _tag_of_unchanged(task: Task) -> str:
    """The build tag of the files that the task's hash names. Raises TrialError(task_changed)."""
    tag = build_tag(task)
    task.require_unchanged("environment")
    return tag


def build_tag(task: Task) -> str:
    """The tag `tbench/<task>:<hash>` of paths, modes and bytes of environment/: the same content is built once."""
    digest = hashlib.sha256()
    root = task.path / "environment"
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root).as_posix()
        executable = path.is_file() and os.access(path, os.X_OK)
        digest.update(f"{relative}\0{'x' if executable else '-'}\0".encode())
        if path.is_symlink():
            digest.update(str(path.readlink()).encode())
        elif path.is_file():
            with path.open("rb") as file:  # of any size: only its digest is held
                digest.update(hashlib.file_digest(file, "sha256").digest())
    slug = re.sub(r"[^a-z0-9]+", "-", task.name.lower()).strip("-") or "task"
    return f"tbench/{slug}:{digest.hexdigest()[:16]}"


def _why_not_built(error: Exception, log: list[str]) -> str:
    if isinstance(error, EngineUnreachable):
        return "engine_unreachable"
    return "image_no_space" if is_disk_full(error) or _DISK_FULL.search(last_lines(log)) else "image_build_failed"
