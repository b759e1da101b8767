"""Sets up what every engine needs once: base images and the tools volume (static tmux, busybox, terminfo).

The recipes lie in images/; the volume's name carries their hash, so a changed recipe makes a new volume.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import subprocess
import tempfile
from functools import partial
from pathlib import Path

from tbench.errors import UsageError
from tbench.sandbox.backend import TOOLS, Say
from tbench.sandbox.docker.build import BuildFailed, build, last_lines
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.labels import LABEL_OWNER, LABEL_SHARED
from tbench.sandbox.docker.pulling.name import ImageName
from tbench.sandbox.docker.pulling.pulls import Patience, Pulls
from tbench.sandbox.docker.pulling.trouble import PullFailed
from tbench.tasks.bundled import images_dir
from tbench.text import one_line

_PULL_SEC = 600.0
_BUILD_SEC = 1800.0
_LITTLE_PATIENCE = Patience(attempts=2, total_sec=20.0)
"""There is another way to a base image."""
_FILLED = "-filled"


def ensure_engine_runs(say: Say) -> None:
    """Install and start an engine where none answers and that can be done. Raises UsageError with what to do."""
    script = images_dir() / "engine.sh"
    with subprocess.Popen(["sh", str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            say(line.rstrip())
        words = process.stderr.read().strip()
    if process.returncode:
        raise UsageError(words.removeprefix("engine: ") or f"{script.name} ended with {process.returncode}")


def base_images() -> list[tuple[str, str]]:
    """Each bundled recipe's image, and the Debian suite to make it from where it cannot be pulled."""
    lines = (images_dir() / "base-images.txt").read_text().splitlines()
    rows = (line.split() for line in lines if line.strip() and not line.startswith("#"))
    return [(image, suite) for image, suite in rows]


async def ensure_base_images(engine: Engine, say: Say) -> None:
    """Pull missing base images; where no registry answers, make them with mmdebstrap. Raises UsageError."""
    pulls = Pulls(engine, pull_sec=_PULL_SEC, patience=_LITTLE_PATIENCE, say=say)
    for image, suite in base_images():
        if await _has_image(engine, image):
            continue
        try:
            await pulls.pull(ImageName.parse(image), "base")
        except PullFailed as error:
            say(f"base: {image} cannot be pulled ({one_line(str(error), 100)})")
            await _bootstrap(engine, image, suite, say)


async def _has_image(engine: Engine, image: str) -> bool:
    try:
        await engine.call(engine.api.inspect_image, image)
    except EngineError as error:
        if error.status == 404:
            return False
        raise
    return True


async def _bootstrap(engine: Engine, image: str, suite: str, say: Say) -> None:
    with tempfile.TemporaryDirectory(prefix="tbench-base-") as directory:
        rootfs = Path(directory) / "rootfs.tar"
        command = ["sh", str(images_dir() / "base.sh"), image, suite, str(rootfs)]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        async for line in process.stdout:
            say(line.decode().rstrip())
        _, errors = await process.communicate()
        if process.returncode:
            raise UsageError(errors.decode("utf-8", "replace").strip().removeprefix("base: "))
        changes = [
            "LABEL tbench.bootstrapped=1",
            'CMD ["bash"]',
            "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        ]
        # The whole name: Podman ignores a tag that is given separately.
        await engine.call(
            engine.api.import_image_from_file, str(rootfs), repository=image, changes=changes, deadline_sec=_BUILD_SEC
        )
        say(f"base: {image} is ready")


async def ensure_tools(engine: Engine, say: Say, recipe: Path | None = None) -> str:
    """The name of the tools volume, built and filled where the engine lacks it. Raises UsageError."""
    recipe = recipe or images_dir() / "tools"
    name = tools_volume_name(recipe)
    if await _is_filled(engine, name):
        return name
    tag = f"tbench/tools:{name.rpartition('-')[2]}"
    log: list[str] = []
    try:
        if not await _has_image(engine, tag):
            await ensure_base_images(engine, say)
            say("tools: building static tmux and terminfo (once, about a minute)")
            await engine.call(
                partial(build, limit_sec=_BUILD_SEC, labels={LABEL_SHARED: "tools"}, log=log),
                engine.api,
                recipe,
                tag,
                deadline_sec=_BUILD_SEC + 30,
            )
        await _fill(engine, name, tag)
    except (BuildFailed, EngineError, TimeoutError) as error:
        why = f"{one_line(str(error), 300)}; {last_lines(log)}"
        raise UsageError(f"building the tools volume from {recipe} failed: {why}") from error
    say(f"tools: volume {name} is ready")
    return name


async def _is_filled(engine: Engine, name: str) -> bool:
    """Whether a volume was filled to its end. A second, empty volume says so, as labels cannot be set afterwards."""
    try:
        for volume in (name, f"{name}{_FILLED}"):
            await engine.call(engine.api.inspect_volume, volume)
    except EngineError as error:
        if error.status != 404:
            raise UsageError(f"the engine cannot say whether volume {name} exists: {error}") from error
        return False
    return True


def tools_volume_name(recipe: Path | None = None) -> str:
    return f"tbench-tools-{recipe_hash(recipe or images_dir() / 'tools')}"


def recipe_hash(recipe: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in recipe.rglob("*") if path.is_file()):
        digest.update(path.relative_to(recipe).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


async def _fill(engine: Engine, name: str, tag: str) -> None:
    """Fill a volume: the engine copies an image's files into an empty one when a container first mounts it there."""
    api = engine.api
    # A process that was killed while it filled the volume may have left it; one in use stays.
    with contextlib.suppress(EngineError):
        await engine.call(api.remove_volume, name)
    await engine.call(api.create_volume, name, labels={LABEL_SHARED: "tools"})
    filled = False
    try:
        # Not --rm: the exit code has to be read, and it is the proof that the volume was filled.
        created = await engine.call(
            api.create_container,
            tag,
            entrypoint=[f"{TOOLS}/bin/tmux", "-V"],
            labels={LABEL_SHARED: "tools", LABEL_OWNER: engine.owner},
            host_config=api.create_host_config(binds=[f"{name}:{TOOLS}"], network_mode="none"),
        )
        try:
            await engine.call(api.start, created["Id"])
            ended = await engine.call(api.wait, created["Id"])
            if ended["StatusCode"] != 0:
                raise EngineError(f"tmux in the volume ended with {ended['StatusCode']}")
        finally:
            await engine.call(api.remove_container, created["Id"], force=True)
        await engine.call(api.create_volume, f"{name}{_FILLED}", labels={LABEL_SHARED: "tools"})
        filled = True
    finally:
        if not filled:
            await engine.call(api.remove_volume, name, force=True)
