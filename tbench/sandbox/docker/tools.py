"""Sets up what every engine needs once: base images and the tools volume (static tmux, busybox, terminfo).

The recipes lie in images/; the volume's name carries their hash, so a changed recipe makes a new volume.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary

from tbench.errors import UsageError
from tbench.sandbox.backend import TOOLS, Say
from tbench.sandbox.docker.build import BuildContext, BuildFailed, build, last_lines
from tbench.sandbox.docker.create import ensure_nothing, host_config_of, run_helper
from tbench.sandbox.docker.engine import Engine, EngineError, EngineUnreachable
from tbench.sandbox.docker.limits import SCRIPT, SMALL, read_limits
from tbench.sandbox.docker.login import ImageName
from tbench.sandbox.docker.owner import LABEL_OWNER, LABEL_SHARED
from tbench.sandbox.docker.pulls import Patience, PullFailed, Pulls
from tbench.tasks.sources import images_dir
from tbench.text import one_line

_PULL_SEC = 600.0
_BUILD_SEC = 1800.0
_LITTLE_PATIENCE = Patience(attempts=2, total_sec=20.0)
"""There is another way to a base image."""
_VOLUME = "/v"
"""Where the tools volume is in the container that looks at it."""
# Files by their sums, and every entry by its kind, mode and owner. What a volume should have says its image; where that
# is gone, what was written down when the volume was filled.
_LOOK = """
list() (
    cd "$1" && $b find . -name '.tbench-*' -prune -o -exec $b stat -c '%f %u %g %n' {} + &&
        $b find . -name '.tbench-*' -prune -o -type f -exec $b sha256sum {} +
)
is_whole() { list $v >/have || return 1; $b grep -vxFf /have /want >/missing; [ $? = 1 ]; }
if [ "$image" ]; then list $image >/want; else $b cat $v/.tbench-files >/want; fi
[ -s /want ] || { echo it does not say what belongs there; exit 1; }
"""
# Every file comes to its place whole, so that others may use the volume meanwhile, or fill it, too: what fails because
# of them is done again.
_FILL = """
fill() {
    new=$(mktemp -d $v/.tbench-new-XXXXXX) && cp -a $image/. "$new" && cd "$new" || return
    find . -type d | while read -r each; do
        [ -d "$v/$each" ] && [ ! -L "$v/$each" ] || { rm -f "$v/$each"; mkdir "$v/$each"; }
        chown --reference="$each" "$v/$each"
        chmod --reference="$each" "$v/$each"
    done
    find . ! -type d | while read -r each; do
        [ ! -d "$v/$each" ] || [ -L "$v/$each" ] || rm -r "$v/$each"
        mv -fT "$each" "$v/$each"
    done
    cd /
    rm -r "$new"
    find $v -maxdepth 1 -name '.tbench-new-*' -mmin +60 -exec rm -r {} +  # of those that were killed
}
for turn in 1 2 3; do
    is_whole && break
    fill
    echo filled
done
"""
_END = """
is_whole || { echo "it lacks $($b head -n 1 /missing)"; exit 1; }
LOCPATH=$v/share/locale LC_ALL=C.UTF-8 $v/bin/tmux -V >/dev/null || { echo "tmux in the volume ended with $?"; exit 1; }
if [ "$image" ] && ! cmp -s /want $v/.tbench-files; then
    new=$(mktemp $v/.tbench-XXXXXX) && cat /want >"$new" && mv -f "$new" $v/.tbench-files || exit 1
fi
"""


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


@dataclass(frozen=True)
class Tools:
    """The tools volume of an engine, after it was looked at."""

    volume: str
    was_filled: bool
    """Whether something was missing or another, and was put there."""
    limits: Mapping[str, str]
    """What the container that looked at it has seen of its own limits, which were SMALL."""


_LOOKED_AT: WeakKeyDictionary[Engine, Tools] = WeakKeyDictionary()


async def tools_of(engine: Engine, say: Say) -> Tools:
    """The tools volume, looked at once for each connection to an engine. Raises UsageError."""
    if engine not in _LOOKED_AT:
        _LOOKED_AT[engine] = await whole_tools(engine, say)
    return _LOOKED_AT[engine]


async def ensure_tools(engine: Engine, say: Say, recipe: Path | None = None) -> str:
    """The name of the tools volume, which is whole then. Raises UsageError."""
    return (await whole_tools(engine, say, recipe)).volume


async def whole_tools(engine: Engine, say: Say, recipe: Path | None = None) -> Tools:
    """Make sure that the tools volume has all its files, as they should be; whoever uses it meanwhile is not disturbed.

    Raises UsageError.
    """
    recipe = recipe or images_dir() / "tools"
    name = tools_volume_name(recipe)
    tag = f"tbench/tools:{name.rpartition('-')[2]}"
    log: list[str] = []
    try:
        is_new = not await _has_volume(engine, name)
        if not await _has_image(engine, tag):
            # Whoever makes room may remove it, and to build it takes a mirror and a minute.
            if not is_new and (printed := await _look_without_image(engine, name)) is not None:
                return Tools(name, False, read_limits(printed))
            await ensure_base_images(engine, say)
            say("tools: building static tmux and terminfo (once, about a minute)")
            await engine.call(
                partial(build, limit_sec=_BUILD_SEC, labels={LABEL_SHARED: "tools"}, log=log),
                engine.api,
                BuildContext.of_folder(recipe),
                tag,
                deadline_sec=_BUILD_SEC + 30,
            )
        printed = await _look_and_fill(engine, name, tag, is_new=is_new)
    except (BuildFailed, EngineError, TimeoutError) as error:
        why = f"{one_line(str(error), 300)}{last_lines(log)}"
        raise UsageError(f"building the tools volume from {recipe} failed: {why}") from error
    was_filled = "filled" in printed.splitlines()
    if was_filled:
        say(f"tools: volume {name} {'is ready' if is_new else 'was not whole; it is filled again'}")
    return Tools(name, was_filled, read_limits(printed))


async def _has_volume(engine: Engine, name: str) -> bool:
    try:
        await engine.call(engine.api.inspect_volume, name)
    except EngineError as error:
        if error.status != 404:
            raise UsageError(f"the engine cannot say whether volume {name} exists: {error}") from error
        return False
    return True


async def _look_and_fill(engine: Engine, name: str, tag: str, *, is_new: bool) -> str:
    """Compare a volume with its image, and bring what is missing; what that prints. Raises EngineError."""
    if is_new:
        await engine.call(engine.api.create_volume, name, labels={LABEL_SHARED: "tools"})
    try:
        return await _look(engine, tag, name, f"v={_VOLUME} image={TOOLS} b=\n{_LOOK}{_FILL}{_END}", "sh")
    except EngineError:
        if is_new:
            with contextlib.suppress(EngineError):  # one in use stays, and is looked at by the next who starts
                await engine.call(engine.api.remove_volume, name)
        raise


async def _look_without_image(engine: Engine, name: str) -> str | None:
    """Look at a volume with its own busybox; what that prints, None where it is not whole. Raises EngineError."""
    busybox = f"{_VOLUME}/bin/busybox"
    nothing = await ensure_nothing(engine)
    try:
        return await _look(engine, nothing, name, f"v={_VOLUME} image= b={busybox}\n{_LOOK}{_END}", busybox, "sh")
    except EngineError as error:
        if isinstance(error, EngineUnreachable):
            raise
        return None


async def _look(engine: Engine, image: str, name: str, script: str, *shell: str) -> str:
    return await run_helper(
        engine,
        image,
        name,
        f"{script}{SCRIPT}",
        labels={LABEL_SHARED: "tools", LABEL_OWNER: engine.owner},
        shell=shell,
        binds=[f"{name}:{_VOLUME}"],
        network_mode="none",
        **host_config_of(SMALL, engine),
    )


def tools_volume_name(recipe: Path | None = None) -> str:
    return f"tbench-tools-{recipe_hash(recipe or images_dir() / 'tools')}"


def recipe_hash(recipe: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in recipe.rglob("*") if path.is_file()):
        digest.update(path.relative_to(recipe).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
