"""Images without an engine: copied by skopeo, unpacked once by umoci, built by buildah."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote
from weakref import WeakValueDictionary

from tbench.errors import TrialError
from tbench.results import Stage
from tbench.sandbox.backend import SandboxSettings, Say
from tbench.sandbox.build_context import BuildContext, build_tag_if_unchanged
from tbench.sandbox.dockerfile import base_images
from tbench.sandbox.image import Image, ImageName
from tbench.sandbox.oci.store import OciError, Store, held, how_to_install, image_facts, is_full, missing_programs, run
from tbench.sandbox.own_images import base_images as own_bases
from tbench.sandbox.own_images import tools_tag
from tbench.sandbox.owner import LABEL_IMAGE, LABEL_SHARED
from tbench.tasks.environment import Environment
from tbench.tasks.sources import images_dir
from tbench.text import one_line

_DOCKER_SOCKET = Path("/var/run/docker.sock")
_COPY_SEC, _BUILD_SEC = 1800.0, 1800.0
_ROOTFS = "rootfs"


class Images:
    """Provides the images of one store; trials of the same image wait for a single copy or build."""

    def __init__(self, store: Store, settings: SandboxSettings, say: Say = lambda _: None) -> None:
        self._store, self._settings, self._say = store, settings, say
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._failed: dict[str, TrialError] = {}

    async def get(self, environment: Environment) -> Image:
        """Find, copy or build the image of a task.

        Raises TrialError: image_unavailable, image_build_failed, image_build_timeout, image_no_space, task_changed. A
        permanent failure is remembered for the run.
        """
        published, config = environment.settings.docker_image, self._settings.config
        is_built = environment.can_be_built and (config.build or not published)
        name = await asyncio.to_thread(build_tag_if_unchanged, environment) if is_built else str(published)
        async with self._lock(name):
            if name in self._failed:
                raise TrialError(self._failed[name].type, str(self._failed[name]))
            try:
                return await (self._built(environment, name) if is_built else self._published(environment, name))
            except OciError as error:  # the disk is full, so no other source was tried
                raise TrialError("image_no_space", f"{environment.name}: {error}", stage=Stage.IMAGE) from error
            except TrialError as error:
                if not error.kind.retryable:
                    self._failed[name] = error
                raise

    def _lock(self, name: str) -> asyncio.Lock:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    async def _published(self, environment: Environment, name: str) -> Image:
        pull, reference = self._settings.config.pull, ImageName.parse(name).reference
        if pull != "always" and (image := self.find(reference)) is not None:
            return replace(image, reference=name).as_published("present")
        registry = [] if pull == "never" else [f"docker://{_full_name(reference)}"]
        sources = (
            [*registry, *_local_sources(reference)] if pull == "always" else [*_local_sources(reference), *registry]
        )
        try:
            image = await self._copy(sources, reference)
        except OciError as error:
            if environment.can_be_built:
                why = f"{name} cannot be pulled ({one_line(str(error), 100)})"
                self._say(f"{environment.name}: {why}; an image built from its Dockerfile is used")
                tag = await asyncio.to_thread(build_tag_if_unchanged, environment)
                return await self._built(environment, tag)
            kind = "image_no_space" if is_full(str(error)) else "image_unavailable"
            raise TrialError(kind, f"{environment.name}: {name}: {error}", stage=Stage.IMAGE) from error
        return replace(image, reference=name).as_published("pulled")

    async def _built(self, environment: Environment, tag: str) -> Image:
        config = self._settings.config
        rebuilds = config.build or config.no_build_cache
        if not rebuilds and (image := self.find(tag)) is not None:
            return image.built("present")
        with _or_another_way():
            if not rebuilds:
                return (await self._copy(_local_sources(tag), tag)).built("present")
        context = BuildContext.for_environment(environment)
        args = environment.build.args if environment.build else {}
        options = [f"--build-arg={name}={value}" for name, value in args.items()]
        options += [f"--target={environment.build.target}"] if environment.build and environment.build.target else []
        options += ["--no-cache"] if config.no_build_cache else []
        self._say(f"{environment.name}: building its image")
        limit_sec = environment.settings.build_timeout_sec
        log: list[str] = []
        try:
            await self._build(context, tag, [f"--label={LABEL_IMAGE}=task", *options], limit_sec, log)
            return (await self._copy([f"containers-storage:localhost/{tag}"], tag)).built("built")
        except TimeoutError:
            why = f"{environment.dockerfile}: the build took longer than {limit_sec:.0f} s"
            raise TrialError("image_build_timeout", why) from None
        except (OciError, OSError) as error:
            masked = self._settings.container_proxy.masks.mask_text(f"{environment.dockerfile}: {error}")
            kind = "image_no_space" if is_full(masked) else "image_build_failed"
            raise TrialError(kind, masked, stage=Stage.IMAGE) from error
        finally:
            self._keep_log(environment, log)

    def _keep_log(self, environment: Environment, log: list[str]) -> None:
        if log and (directory := self._settings.own_logs) is not None:
            directory.mkdir(parents=True, exist_ok=True)
            text = self._settings.container_proxy.masks.mask_text("".join(log))
            (directory / f"{environment.image_name.replace('/', '-')}.log").write_text(text, errors="replace")

    async def _build(
        self, context: BuildContext, tag: str, options: list[str], limit_sec: float, log: list[str]
    ) -> None:
        """Build an image with buildah, into its own storage. Raises OciError, OSError, TimeoutError."""
        if missing := missing_programs("buildah"):
            raise OciError(f"images are built by buildah, which is not installed: {how_to_install(missing)}")
        for name in sorted(filter(None, base_images(context.text))):
            await self._ensure_base(name)
        proxies = self._settings.container_proxy.variables_for(own={}, direct=())
        with tempfile.TemporaryDirectory(prefix="tbench-build-") as folder:
            with tempfile.NamedTemporaryFile() as packed:
                context.pack(packed, uses_buildkit=False)
                packed.flush()
                await run(["tar", "-x", "-C", folder, "-f", packed.name])
            # In a chroot, where no runtime and no network of its own is needed.
            await run(
                [
                    "buildah", "build", "--isolation=chroot", "--layers", "--format=docker", f"--tag=localhost/{tag}",
                    f"--file={Path(folder) / context.dockerfile}", *options,
                    *(f"--build-arg={name}={value}" for name, value in proxies.items()), folder,
                ],
                limit_sec=limit_sec, log=log,
            )  # fmt: skip

    async def _ensure_base(self, name: str) -> None:
        """Give buildah a base image that is tbench's own or in Docker on this machine; it pulls all others itself."""
        with _or_another_way():
            await run(["buildah", "inspect", "--type=image", name])
            return
        target = f"containers-storage:{_full_name(ImageName.parse(name).reference)}"
        for source in _docker_sources(ImageName.parse(name).reference):
            with _or_another_way():
                await run(["skopeo", "copy", "--quiet", source, target], limit_sec=_COPY_SEC)
                return
        suite = dict(own_bases()).get(name)
        if suite is not None:
            try:
                await run(["buildah", "pull", "--quiet", name], limit_sec=_COPY_SEC)
            except OciError:
                await self._bootstrap(name, suite)

    async def _bootstrap(self, name: str, suite: str) -> None:
        """Make a base image with mmdebstrap. Raises OciError."""
        with tempfile.TemporaryDirectory(prefix="tbench-base-") as folder:
            archive = str(Path(folder) / "rootfs.tar")
            await run(["sh", str(images_dir() / "base.sh"), name, suite, archive], limit_sec=_BUILD_SEC)
            (Path(folder) / "Dockerfile").write_text(
                'FROM scratch\nADD rootfs.tar /\nLABEL tbench.bootstrapped=1\nCMD ["bash"]\n'
            )
            full = _full_name(name)
            await run(["buildah", "build", "--isolation=chroot", f"--tag={full}", folder], limit_sec=_BUILD_SEC)

    async def tools(self) -> Image:
        """Return the image with tbench's tools, built if it is missing. Raises OciError, TimeoutError."""
        tag = tools_tag()
        async with self._lock(tag):
            if (image := self.find(tag)) is not None:
                return image
            with _or_another_way():
                return await self._copy(_local_sources(tag), tag)
            self._say("tools: building static tmux and terminfo (once, about a minute)")
            context = BuildContext.for_folder(images_dir() / "tools")
            await self._build(context, tag, [f"--label={LABEL_SHARED}=tools"], _BUILD_SEC, [])
            return await self._copy([f"containers-storage:localhost/{tag}"], tag)

    def find(self, name: str) -> Image | None:
        """Find an image of the store by name or id; None if it is not there."""
        try:
            return Image.from_inspection(name, image_facts(self.directory(name)))
        except (OSError, ValueError):
            return None

    def directory(self, name: str) -> Path:
        """Return the directory of an image by name or id, which need not exist."""
        if name.startswith("sha256:"):
            return self._store.images / name.removeprefix("sha256:")
        return self._store.names / quote(name, safe="")

    def layers(self, image_id: str) -> list[Path]:
        """Return the directories with an image's files, the topmost first. Raises TrialError(image_unavailable)."""
        directory = self.directory(image_id)
        try:
            below = image_facts(directory).get("Below")
        except (OSError, ValueError):
            raise TrialError("image_unavailable", f"the image {image_id[:19]} is gone") from None
        return [directory / _ROOTFS, *(self.layers(below) if below else ())]

    async def _copy(self, sources: Iterable[str], name: str) -> Image:
        """Copy and unpack an image from the first source that has it. Raises OciError."""
        failure = OciError(f"{name} is not on this machine")
        for source in sources:
            try:
                with self._making() as new:
                    facts = await self._unpack(source, new)
                    self._finish(new, facts, name)
            except OciError as error:
                failure = error
                if is_full(str(error)):
                    break
            except TimeoutError:
                failure = OciError(f"copying {source} took longer than {_COPY_SEC:.0f} s")
            else:
                image = self.find(name)
                assert image is not None
                return image
        raise failure

    async def _unpack(self, source: str, new: Path) -> dict[str, Any]:
        """Copy an image and unpack it to a new directory; returns its configuration. Raises OciError, TimeoutError."""
        if source.startswith("docker-daemon:"):
            # The engine packs the whole image for each request.
            await run(["skopeo", "copy", "--quiet", source, f"docker-archive:{new}/saved.tar"], limit_sec=_COPY_SEC)
            source = f"docker-archive:{new}/saved.tar"
        # Unlike the copy, this has all of Docker's fields, such as the healthcheck.
        raw = await run(["skopeo", "inspect", "--config", "--raw", source])
        # Umoci reads no uncompressed layers.
        fast = ["--dest-compress-format=gzip", "--dest-compress-level=1"]
        await run(["skopeo", "copy", "--quiet", *fast, source, f"oci:{new}/oci:image"], limit_sec=_COPY_SEC)
        unpacking = ["umoci", "raw", "unpack", "--image", f"{new}/oci:image", str(new / _ROOTFS)]
        await run([*self._store.as_root(), *unpacking], limit_sec=_COPY_SEC)
        await run(["rm", "-rf", f"{new}/oci", f"{new}/saved.tar"])
        config = json.loads(raw)
        identity = hashlib.sha256(raw.encode()).hexdigest()
        return {"Id": f"sha256:{identity}", "Config": config.get("config") or {}, "Created": time.time()}

    @contextlib.contextmanager
    def _making(self) -> Iterator[Path]:
        """Yield a new directory in the store, which is removed if it is still there at the end."""
        new = Path(tempfile.mkdtemp(prefix=".new-", dir=self._store.images))
        new.chmod(0o755)
        try:
            with held(new):
                yield new
        finally:
            if new.exists():
                os.spawnvp(os.P_WAIT, "sh", ["sh", "-c", '"$@"', "sh", *self._store.remove_tree(new)])

    def _finish(self, new: Path, facts: dict[str, Any], name: str = "") -> None:
        """Move a complete image to its place, under its id and a name."""
        (new / "image.json").write_text(json.dumps(facts))
        directory = self.directory(facts["Id"])
        with contextlib.suppress(OSError):  # another process was faster
            new.rename(directory)
        if name:
            link = self._store.names / f".new-{os.getpid()}-{quote(name, safe='')[-100:]}"
            link.unlink(missing_ok=True)
            link.symlink_to(directory)
            link.replace(self.directory(name))

    async def save(self, image_id: str, files: Path, more: dict[str, str]) -> str:
        """Save a container's own files as a new image, a layer on its old one; return the new id.

        Raises OciError, TimeoutError.
        """
        config = image_facts(self.directory(image_id)).get("Config") or {}
        labelled = {**config, "Labels": {**(config.get("Labels") or {}), **more}}
        identity = f"sha256:{hashlib.sha256(os.urandom(32)).hexdigest()}"
        with self._making() as new:
            await run([*self._store.as_root(), "cp", "-a", str(files), str(new / _ROOTFS)], limit_sec=_COPY_SEC)
            self._finish(new, {"Id": identity, "Config": labelled, "Below": image_id, "Created": time.time()})
        return identity


@contextlib.contextmanager
def _or_another_way() -> Iterator[None]:
    """Suppress failures of the block, so that the next source is tried, except for a full disk. Raises OciError."""
    try:
        yield
    except OciError as error:
        if is_full(str(error)):
            raise


def _full_name(reference: str) -> str:
    """Return a reference with its registry, as skopeo and buildah want it."""
    name = ImageName.parse(reference)
    return f"{name.registry}/{name.path}{reference.removeprefix(name.repository)}"


def _local_sources(reference: str) -> list[str]:
    """Return the places on this machine where skopeo may find an image: Podman's and buildah's storage, and Docker."""
    # Images that Podman's service builds are named docker.io/…, as with Docker.
    own = [f"localhost/{reference}", f"docker.io/{reference}"] if reference.startswith("tbench/") else []
    return [*(f"containers-storage:{each}" for each in own or [_full_name(reference)]), *_docker_sources(reference)]


def _docker_sources(reference: str) -> list[str]:
    return [f"docker-daemon:{reference}"] if os.access(_DOCKER_SOCKET, os.W_OK) else []
