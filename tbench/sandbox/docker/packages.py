"""Agents' packages on an engine: a volume for each, filled once; and a runtime, so that they run in any image."""

from __future__ import annotations

import io
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

from tbench.errors import TrialError, UsageError
from tbench.sandbox.backend import Say
from tbench.sandbox.docker.build import BuildFailed, build_own, last_lines
from tbench.sandbox.docker.create import copying_container
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.tools import ensure_base_images
from tbench.sandbox.own_images import recipe_hash
from tbench.sandbox.owner import LABEL_OWNER, LABEL_SHARED
from tbench.sandbox.package import PACKAGE, AgentPackage
from tbench.tasks.sources import images_dir
from tbench.text import one_line

_COPY_SEC = 1800.0
_VOLUME = "/v"
_WHOLE = ".tbench-whole"
"""File that marks a volume as filled; it is written last."""
_CHUNK = 1 << 20


async def ensure_package(engine: Engine, package: AgentPackage, say: Say) -> str:
    """Make and fill the volume of a package if it is missing, and return its name. Raises UsageError."""
    if package.architecture != engine.info.architecture:
        raise UsageError(
            f"{package.title}: its package is for {package.architecture}, and the engine's machine is "
            f"{engine.info.architecture}; pull the package on a machine of the engine's kind"
        )
    name = f"tbench-agent-{package.sha256[:16]}"
    try:
        await engine.call(engine.api.create_volume, name, labels={LABEL_SHARED: "agent"}, again=True)
        async with copying_container(engine, _labels(engine), binds=[f"{name}:{_VOLUME}"]) as holder:
            if not await _is_whole(engine, holder):
                say(f"agent: copying {package.title} to the engine (once)")
                await _put(engine, holder, _VOLUME, package.archive)
                await engine.call(engine.api.put_archive, holder, _VOLUME, _marker(), again=True)
    except (EngineError, TrialError, OSError) as error:
        raise UsageError(f"{package.title}: cannot be copied to the engine: {one_line(str(error), 300)}") from error
    return name


async def add_runtime(engine: Engine, say: Say, packages: Path, archive: Path) -> None:
    """Write an archive of these packages with their own loader, libraries and Python. Raises UsageError."""
    recipe = images_dir() / "agent-runtime"
    tag, log = f"tbench/agent-runtime:{recipe_hash(recipe)}", list[str]()
    try:
        await ensure_base_images(engine, say)
        say("agent: building its runtime, with which it runs in any image (once, about a minute)")
        await build_own(engine, recipe, tag, "agent-runtime", log)
        async with copying_container(engine, _labels(engine), image=tag) as holder:
            await _put(engine, holder, PACKAGE, packages)
            await engine.call(engine.api.start, holder)
            waiting = partial(engine.api.wait, holder, timeout=int(_COPY_SEC))
            if code := (await engine.call(waiting, deadline_sec=_COPY_SEC + 30))["StatusCode"]:
                raise BuildFailed(f"finishing it ended with {code}")
            await engine.call(partial(_get, engine.api, holder, archive), deadline_sec=_COPY_SEC)
    except (BuildFailed, EngineError, TrialError, TimeoutError) as error:
        words = f"{one_line(str(error), 300)}{last_lines(log)}"
        raise UsageError(f"the runtime with which agents run in any image cannot be made: {words}") from error


def _labels(engine: Engine) -> dict[str, str]:
    return {LABEL_SHARED: "agent", LABEL_OWNER: engine.owner}


async def _is_whole(engine: Engine, holder: str) -> bool:
    def look() -> bool:
        pieces, _ = engine.api.get_archive(holder, f"{_VOLUME}/{_WHOLE}")
        return sum(map(len, pieces)) > 0

    return await engine.find(look, again=True) or False


async def _put(engine: Engine, holder: str, folder: str, archive: Path) -> None:
    def put() -> None:
        with archive.open("rb") as file:
            engine.api.put_archive(holder, folder, file)

    await engine.call(put, deadline_sec=_COPY_SEC, again=True)


def _marker() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo(_WHOLE)
        member.size = 1
        tar.addfile(member, io.BytesIO(b"1"))
    return packed.getvalue()


def _get(api: Any, holder: str, archive: Path) -> None:
    """Write the files of the package's folder in a container to an archive, without the folder's own name."""
    pieces, _ = api.get_archive(holder, PACKAGE, chunk_size=_CHUNK)
    whole = archive.with_suffix(".whole")
    with whole.open("wb") as file:
        for piece in pieces:
            file.write(piece)
    with tarfile.open(whole, "r:") as source, tarfile.open(archive, "w") as target:
        for member in source:
            _, _, below = member.name.partition("/")
            if not below:
                continue
            if member.islnk():
                member.linkname = member.linkname.partition("/")[2]
            member.name = below
            target.addfile(member, source.extractfile(member) if member.isreg() else None)
    whole.unlink()
