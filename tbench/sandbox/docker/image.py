"""Finds, pulls or builds the images of tasks, once per content of environment/."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from tbench.config.settings import PullChoice
from tbench.errors import TrialError
from tbench.results import Stage
from tbench.sandbox.build_context import BuildContext, build_tag, build_tag_if_unchanged
from tbench.sandbox.container_proxy import WITHOUT_PROXY, ContainerProxy
from tbench.sandbox.docker.build import BuildFailed, BuildLog, CacheGone, build, has_buildkit, last_lines
from tbench.sandbox.docker.engine import Engine, EngineError, EngineUnreachable, is_disk_full
from tbench.sandbox.docker.login import find_login
from tbench.sandbox.docker.manifest import free_bytes
from tbench.sandbox.docker.pulls import PullFailed, Pulls
from tbench.sandbox.docker.removing import remove_unless_in_use
from tbench.sandbox.dockerfile import (
    base_images,
    find_remote_add,
    heredoc_around,
    needs_buildkit,
    network_bypass,
    platform_args,
    read_dockerfile,
)
from tbench.sandbox.image import Image, ImageName
from tbench.sandbox.owner import LABEL_IMAGE
from tbench.tasks.environment import Environment
from tbench.text import one_line

FREE_MB = 4096.0
"""Free megabytes on the engine's disk below which nothing is built or pulled. Images of bundled tasks take up to
0.6 GB, those of large tasks several GB; containers write there as well."""
_BUILDS_AT_ONCE = 2
_NO_DOCKERFILE = "there is no Dockerfile to build it from"
_ERROR_TYPES = {"denied": "image_denied", "rate-limited": "image_rate_limited", "no-space": "image_no_space"}
"""Error types by kind of pull failure; all other kinds are image_unavailable."""


_Key = tuple[str, str | None]
"""Identifies an image of a run: name of the built image, and name of the published one."""
ImageState = Literal["present", "to be pulled", "to be built", "unavailable"]
ClosedNetwork = Callable[[], AbstractAsyncContextManager[str]]
"""Makes a network for one build that cannot reach the engine's host; yields its name on the engine."""


@dataclass(kw_only=True)
class Images:
    """Provides the image of each task; trials of the same task wait for a single build."""

    engine: Engine = field(kw_only=False)
    build: bool = False
    """Whether images with a Dockerfile are built even if they are published."""
    no_build_cache: bool = False
    """Whether builds ignore existing images and the engine's cache."""
    pull: PullChoice = "missing"
    pulls: Pulls | None = None
    free_mb: float = FREE_MB
    log_dir: Path | None = None
    say: Callable[[str], None] = lambda _: None
    closed_network: ClosedNetwork | None = None
    """Network that all builds use; Dockerfiles that would bypass it are refused."""
    proxy: ContainerProxy = WITHOUT_PROXY
    made: set[str] = field(default_factory=set)
    """Collects the ids of images that are pulled or built, and may hold those of earlier runs."""

    def __post_init__(self) -> None:
        self._pulls = self.pulls or Pulls(self.engine, say=self.say)
        self._locks: dict[_Key, asyncio.Lock] = {}
        self._ready: dict[_Key, Image] = {}
        self._failed: dict[_Key, TrialError] = {}
        self._reported_away: set[str] = set()
        self._building = asyncio.Semaphore(_BUILDS_AT_ONCE)

    async def get(self, environment: Environment) -> Image:
        """Find, pull or build the task's image.

        Raises TrialError: image_unavailable, image_denied, image_rate_limited, image_build_failed,
        image_build_timeout, image_no_space, engine_unreachable, task_changed.

        A permanent failure is remembered for the run, so that other trials of the task fail at once with the same
        message. An image that was removed meanwhile, for example by another run, is fetched again.
        """
        key = _key(environment)
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key in self._failed:
                failed = self._failed[key]
                raise TrialError(failed.type, str(failed))
            if (known := self._ready.get(key)) is not None and await self.find(known.id) is None:
                self._forget(key, known)
            if key not in self._ready:
                try:
                    self._ready[key] = image = await self._resolve(environment)
                except TrialError as error:
                    if not error.kind.retryable:
                        self._failed[key] = error
                    raise
                if image.origin is not None and image.origin.how in ("pulled", "built"):
                    self.made.add(image.id)
            return self._ready[key]

    async def _resolve(self, environment: Environment) -> Image:
        published = environment.settings.docker_image
        name = ImageName.parse(published) if published and not self._is_built(environment) else None
        if name is not None and (image := await self._as_published(name, environment)) is not None:
            return image
        if not environment.can_be_built:
            raise TrialError("image_unavailable", f"{environment.name}: {published} is not pulled and {_NO_DOCKERFILE}")
        # In a thread: hashing some megabytes must not hold up the other trials' terminals.
        tag = await asyncio.to_thread(build_tag_if_unchanged, environment)
        if not self._rebuilds and (image := await self.find(tag)) is not None:
            return image.built("present")
        if self.closed_network is not None:
            await self._require_closable(environment)
        async with self._building:
            await self._need_space(environment)
            return (await self._build(environment, tag)).built("built")

    def _is_built(self, environment: Environment) -> bool:
        """Whether the image is built even if it is published."""
        return self.build and environment.can_be_built

    @property
    def _rebuilds(self) -> bool:
        """Whether images are built even if they exist."""
        return self.build or self.no_build_cache

    async def _require_closable(self, environment: Environment) -> None:
        """Check that the task's build cannot bypass its network. Raises TrialError."""
        dockerfile, args = _dockerfile(environment), environment.build.args if environment.build else {}
        why = network_bypass(dockerfile, args)
        for name in sorted(filter(None, base_images(dockerfile, args))) if why is None else ():
            if (base := await self.find(name)) is None:
                await self._pull_base(name, environment)
                base = await self.find(name)
            if base is not None and (line := find_remote_add(base.triggers)) is not None:
                why = f"its {name} contributes {line!r}, for which the engine itself fetches a URL"
        if why is not None:
            raise TrialError(
                "image_build_failed",
                f"{environment.dockerfile}: cannot be built with --block-host: {why}; "
                "build it once without --block-host",
            )

    async def _pull_base(self, name: str, environment: Environment) -> None:
        await self._need_space(environment)
        try:
            await self._pulls.pull(ImageName.parse(name), environment.name)
        except (PullFailed, EngineUnreachable) as error:
            raise _pull_error(error, f"{environment.dockerfile}: FROM {name}") from error

    async def get_all(self, environments: Iterable[Environment]) -> dict[str, Image | TrialError]:
        """Return the images of several environments by name, or the errors."""

        async def get(environment: Environment) -> Image | TrialError:
            try:
                return await self.get(environment)
            except TrialError as error:
                return error

        wanted = {each.name: each for each in environments}
        return dict(zip(wanted, await asyncio.gather(*map(get, wanted.values())), strict=True))

    async def to_pull(self, environments: Iterable[Environment]) -> list[ImageName]:
        """Return the published images that `get` would pull; empty if the engine fails to answer."""
        if self.pull == "never":
            return []
        named = {each.settings.docker_image for each in environments if not self._is_built(each)}
        names = [ImageName.parse(each) for each in sorted(filter(None, named))]
        try:
            found = await asyncio.gather(*map(self.find_published, names))
        except TrialError:
            return []
        return [name for name, image in zip(names, found, strict=True) if image is None]

    async def predict_state(self, environment: Environment) -> ImageState:
        """Predict what `get` will do for the task's image. Raises TrialError."""
        published = environment.settings.docker_image
        if published and not self._is_built(environment):
            name = ImageName.parse(published)
            if not self._always_pulls(name) and await self.find_published(name):
                return "present"
            if self.pull != "never":
                return "to be pulled"  # if the pull fails, it is built
            if not environment.can_be_built:
                return "unavailable"
        tag = await asyncio.to_thread(build_tag, environment)
        return "present" if not self._rebuilds and await self.find(tag) else "to be built"

    async def _need_space(self, environment: Environment) -> None:
        """Check the free space of the engine's disk, if it is known. Raises TrialError(image_no_space)."""
        free = await free_bytes(self.engine)
        if free is not None and free / (1 << 20) < self.free_mb:
            raise TrialError(
                "image_no_space",
                f"{environment.name}: {self.engine.info.root} has only {free / (1 << 20):.0f} MB free, less than "
                f"{self.free_mb:.0f}: make room with 'tbench clean --all' and 'docker system prune'",
            )

    async def find(self, reference: str) -> Image | None:
        """Find an image by name or id; None if the engine does not have it."""
        try:
            found = await self.engine.find(self.engine.api.inspect_image, reference)
        except EngineError as error:
            kind = "engine_unreachable" if error.status is None else "image_unavailable"
            raise TrialError(kind, f"{reference}: {error}", stage=Stage.IMAGE) from error
        return None if found is None else Image.from_inspection(reference, found)

    async def find_published(self, name: ImageName) -> Image | None:
        """Find a published image; a pinned one has to have its digest."""
        image = await self.find(name.reference)
        if image is None or (name.digest and not any(each.endswith(f"@{name.digest}") for each in image.digests)):
            return None
        return replace(image, reference=name.text)

    def _always_pulls(self, name: ImageName) -> bool:
        """Whether to pull the image even if it exists, since the registry may have a newer one."""
        return self.pull == "always" and name.digest is None

    async def _as_published(self, name: ImageName, environment: Environment) -> Image | None:
        """Find or pull a published image; None if it has to be built instead. Raises TrialError."""
        found = await self.find_published(name)
        if found is not None and not self._always_pulls(name):
            return found.as_published("present")
        if self.pull == "never":
            self._build_instead(name, environment, "is not on the engine, and --pull never forbids pulling it")
            return None
        await self._need_space(environment)
        try:
            await self._pulls.pull(name, environment.name)
        except EngineUnreachable as error:
            raise _pull_error(error, f"{environment.name}: {name.display_name}") from error
        except PullFailed as failed:
            if found is not None:
                where = (
                    f"{environment.name}: --pull always: {name.display_name} (--pull missing uses the existing image)"
                )
                raise _pull_error(failed, where) from failed
            self._fall_back_to_build(name, environment, failed)
            return None
        image = await self.find_published(name)
        if image is None:
            why = "was pulled, but the engine has no image with that name and digest"
            raise TrialError("image_unavailable", f"{environment.name}: {name.display_name} {why}")
        return image.as_published("present" if found is not None and found.id == image.id else "pulled")

    def _fall_back_to_build(self, name: ImageName, environment: Environment, failed: PullFailed) -> None:
        """Announce that an image is built because its pull failed. Raises TrialError if it cannot be built either."""
        where = f"{environment.name}: {name.display_name} cannot be pulled"
        if failed.kind == "no-space":
            raise _pull_error(failed, where)
        if not environment.can_be_built:
            raise _pull_error(failed, f"{where} and {_NO_DOCKERFILE}")
        if failed.kind not in ("away", "silent"):
            self._build_instead(name, environment, f"cannot be pulled ({one_line(str(failed), 300)})")
        elif name.registry not in self._reported_away:
            self._reported_away.add(name.registry)
            why = one_line(failed.engine_message, 200)
            self.say(f"registry {name.registry} cannot be reached ({why}); images are built instead")

    def _build_instead(self, name: ImageName, environment: Environment, why: str) -> None:
        if not environment.can_be_built:
            raise TrialError("image_unavailable", f"{environment.name}: {name.display_name} {why}; {_NO_DOCKERFILE}")
        other = ", which will differ from the pinned image" if name.digest else ""
        self.say(f"{environment.name}: {name.display_name} {why}; an image built from its Dockerfile is used{other}")

    def _forget(self, key: _Key, image: Image) -> None:
        """Mark the image as missing from the engine."""
        self._ready.pop(key, None)
        self._pulls.forget(ImageName.parse(image.reference))

    def to_drop(self, environment: Environment, others: Iterable[Environment]) -> Image | None:
        """Return the environment's image if this command pulled or built it and none of the `others` needs it."""
        image = self._ready.get(_key(environment))
        if image is None or image.id not in self.made:
            return None
        published = environment.settings.docker_image

        def is_shared(other: Environment) -> bool:
            known = self._ready.get(_key(other))
            same_name = published is not None and other.settings.docker_image == published
            return same_name or (known is not None and known.id == image.id)

        return None if any(map(is_shared, others)) else image

    async def drop(self, environment: Environment, image: Image) -> int:
        """Remove an image unless a container or another name needs it. Returns the bytes freed. Never raises."""
        self._forget(_key(environment), image)
        await remove_unless_in_use(self.engine, "image", ImageName.parse(image.reference).reference)
        try:
            return image.size if await self.find(image.id) is None else 0
        except TrialError:
            return 0

    async def _build(self, environment: Environment, tag: str) -> Image:
        self.say(f"{environment.name}: building its image")
        async with self.closed_network() if self.closed_network else nullcontext() as network:
            await self._build_on(network, environment, tag)
        if (image := await self.find(tag)) is None:
            raise TrialError("image_unavailable", f"{environment.name}: the build ended but left no image {tag}")
        return image

    async def _build_on(self, network: str | None, environment: Environment, tag: str) -> None:
        limit_sec = environment.settings.build_timeout_sec
        log = BuildLog(self.proxy.masks)
        started = time.monotonic()
        try:
            context = await asyncio.to_thread(BuildContext.for_environment, environment)
            uses_buildkit = network is None and self._uses_buildkit(environment, context)
            if uses_buildkit:
                network = await self._network_of_buildkit()
                await self._pull_with_login(environment, context)
            args = environment.build.args if environment.build else {}
            builder = partial(
                build,
                labels={LABEL_IMAGE: "task"},
                network=network,
                no_cache=self.no_build_cache,
                target=environment.build.target if environment.build else None,
                args={**({} if uses_buildkit else self._platform_args(context)), **args, **self._proxy_args(args)},
                uses_buildkit=uses_buildkit,
            )
            await self.engine.call(
                partial(builder, limit_sec=limit_sec, log=log),
                self.engine.api,
                context,
                tag,
                deadline_sec=limit_sec + 30,
            )
        except (BuildFailed, EngineError, OSError) as error:
            if time.monotonic() - started >= limit_sec:
                why = f"{environment.dockerfile}: the build took longer than {limit_sec:.0f} s{last_lines(log)}"
                raise TrialError("image_build_timeout", why) from error
            why = f"{environment.dockerfile}: {self._build_problem(error, context.text)}{last_lines(log)}"
            raise TrialError(_why_not_built(error, log), why, stage=Stage.IMAGE) from error
        finally:
            self._keep_log(environment, log)

    def _uses_buildkit(self, environment: Environment, context: BuildContext) -> bool:
        """Whether to build with BuildKit, if the engine has it. Raises TrialError if it is needed but not usable."""
        if not has_buildkit(self.engine) or not context.may_copy_dockerfile:
            return has_buildkit(self.engine)
        if what := needs_buildkit(context.text):
            why = (
                f"it needs BuildKit ({what}), with which COPY or a mount of the context would include the Dockerfile, "
                "although .dockerignore excludes it"
            )
            advice = "name the files to copy, or do not exclude the Dockerfile in .dockerignore"
            raise TrialError("image_build_failed", f"{environment.dockerfile}: {why}; {advice}")
        return False

    async def _network_of_buildkit(self) -> str | None:
        """Return None for the engine's default bridge, or "none" if there is no bridge, as the classic builder does."""
        found = await self.engine.call(self.engine.api.networks, names=["bridge"])
        return None if any(each["Name"] == "bridge" for each in found) else "none"

    async def _pull_with_login(self, environment: Environment, context: BuildContext) -> None:
        """Pull base images whose registries have a login: BuildKit would pull them without it."""
        args = environment.build.args if environment.build else {}
        for name in sorted(filter(None, base_images(context.text, args))):
            registry = ImageName.parse(name).registry
            if await asyncio.to_thread(find_login, registry) is not None and await self.find(name) is None:
                await self._pull_base(name, environment)

    def _platform_args(self, context: BuildContext) -> dict[str, str]:
        """Return the platform arguments that BuildKit and Podman define but Docker's classic builder does not."""
        info = self.engine.info
        declared = set[str]() if info.is_podman else platform_args(context.text)
        values = {"PLATFORM": f"linux/{info.architecture}", "OS": "linux", "ARCH": info.architecture}
        known = {f"{role}{kind}": value for kind, value in values.items() for role in ("TARGET", "BUILD")}
        return {name: value for name, value in known.items() if name in declared}

    def _build_problem(self, error: Exception, dockerfile: str) -> str:
        """Return the builder's message; explain it if the builder does not support heredocs."""
        message = one_line(self.proxy.masks.mask_text(str(error)), 300)
        line = re.search(r"parse error (?:on )?line (\d+)", message)
        if line is None and "unknown instruction" not in message.lower() and "<<" not in message:
            return message
        if (heredoc := heredoc_around(dockerfile, int(line[1]) if line else None)) is None:
            return message
        info = self.engine.info
        builder = f"{'Podman' if info.is_podman else 'Docker'} {info.version}"
        advice = "supported by Docker 23 and Podman 4.8; with a blank after << by Docker 28.2"
        if not info.is_podman:
            advice += "; or with '# syntax=docker/dockerfile:1' as the first line, if that image can be pulled"
        return f"{heredoc}: this engine's builder ({builder}) does not support it ({advice}): {message}"

    def _proxy_args(self, args: Mapping[str, str]) -> dict[str, str]:
        """Return the build arguments for the proxy, which the engine does not store in image or history."""
        # Over TCP the Docker client itself uses the variables, so the engine's host has to be an exception.
        engine = urlsplit(self.engine.api.base_url).hostname
        return self.proxy.variables_for(own=args, direct=(engine,))

    def _keep_log(self, environment: Environment, log: list[str]) -> None:
        if self.log_dir is not None:
            self.log_dir.mkdir(parents=True, exist_ok=True)
            (self.log_dir / f"{environment.image_name.replace('/', '-')}.log").write_text(
                "".join(log), encoding="utf-8", errors="replace"
            )


def _key(environment: Environment) -> _Key:
    return environment.image_name, environment.settings.docker_image


def _dockerfile(environment: Environment) -> str:
    """Return the text of the Dockerfile."""
    inline = environment.build.inline if environment.build is not None else None
    return read_dockerfile(environment.dockerfile) if inline is None else inline


def _pull_error(error: PullFailed | EngineUnreachable, where: str) -> TrialError:
    """Return the TrialError for an image that cannot be pulled."""
    kind = _ERROR_TYPES.get(error.kind, "image_unavailable") if isinstance(error, PullFailed) else "engine_unreachable"
    return TrialError(kind, f"{where}: {error}", stage=Stage.IMAGE)


def _why_not_built(error: Exception, log: list[str]) -> str:
    if isinstance(error, EngineUnreachable):
        return "engine_unreachable"
    if is_disk_full(error) or is_disk_full(last_lines(log)):
        return "image_no_space"
    return "image_unavailable" if isinstance(error, CacheGone) else "image_build_failed"
