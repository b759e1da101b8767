"""Sets up the base images and the tools volume (static tmux, busybox, terminfo) that every engine needs.

Their recipes are in images/. The volume's name contains a hash of the recipe, so a changed recipe makes a new volume.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

from tbench.errors import UsageError
from tbench.sandbox.backend import TOOLS, Say
from tbench.sandbox.docker.build import BuildFailed, build_own, last_lines
from tbench.sandbox.docker.create import limits_host_config, run_helper
from tbench.sandbox.docker.discovery import find_engine
from tbench.sandbox.docker.engine import Engine, EngineError, EngineUnreachable, no_engine
from tbench.sandbox.docker.podman import podman_remedy, start_podman
from tbench.sandbox.docker.pulls import PullFailed, Pulls, RetryPolicy
from tbench.sandbox.image import ImageName
from tbench.sandbox.limits import PROBE_LIMITS, READ_LIMITS, read_limits
from tbench.sandbox.own_images import base_images, tools_tag, tools_volume_name
from tbench.sandbox.owner import LABEL_OWNER, LABEL_SHARED
from tbench.tasks.sources import images_dir
from tbench.text import one_line

_PULL_SEC = 600.0
_BUILD_SEC = 1800.0
_FEW_RETRIES = RetryPolicy(attempts=2, total_sec=20.0)
"""Few retries, since a base image can also be built with mmdebstrap."""
_VOLUME = "/v"
"""Mount point of the tools volume in the container that checks it."""
# Compares the volume's files (by checksum, kind, mode and owner) with those of its image, or without the image with
# the list that was stored when the volume was filled.
_COMPARE = """
list() (
    cd "$1" && $b find . -name '.tbench-*' -prune -o -exec $b stat -c '%f %u %g %n' {} + &&
        $b find . -name '.tbench-*' -prune -o -type f -exec $b sha256sum {} +
)
is_whole() { list $v >/have || return 1; $b grep -vxFf /have /want >/missing; [ $? = 1 ]; }
if [ "$image" ]; then list $image >/want; else $b cat $v/.tbench-files >/want; fi
[ -s /want ] || { echo its list of files is missing; exit 1; }
"""
# Files are replaced atomically, so that others may use or fill the volume meanwhile; conflicts are resolved by another
# turn.
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
    find $v -maxdepth 1 -name '.tbench-new-*' -mmin +60 -exec rm -r {} +  # left by killed processes
}
for turn in 1 2 3; do
    is_whole && break
    fill
    echo filled
done
"""
_VERIFY = """
is_whole || { echo "it lacks $($b head -n 1 /missing)"; exit 1; }
LOCPATH=$v/share/locale LC_ALL=C.UTF-8 $v/bin/tmux -V >/dev/null || { echo "tmux in the volume ended with $?"; exit 1; }
if [ "$image" ] && ! cmp -s /want $v/.tbench-files; then
    new=$(mktemp $v/.tbench-XXXXXX) && cat /want >"$new" && mv -f "$new" $v/.tbench-files || exit 1
fi
"""


def ensure_engine_runs(say: Say) -> None:
    """Start an engine if none answers: Podman's service, or as root Docker, which is installed if needed.

    Raises UsageError with advice if that is not possible.
    """
    if not os.environ.get("DOCKER_HOST"):
        search = find_engine()
        if search.found is not None:
            say(search.notice or f"engine: answers at {search.found.host}")
            return
        if shutil.which("podman") and (os.geteuid() != 0 or not shutil.which("dockerd")):
            start_podman(say)
            return
        if os.geteuid() != 0:
            raise no_engine(search)
    script = images_dir() / "engine.sh"
    with subprocess.Popen(["sh", str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            say(line.rstrip())
        errors = process.stderr.read().strip()
    if process.returncode:
        raise UsageError(errors.removeprefix("engine: ") or f"{script.name} ended with {process.returncode}")


async def ensure_base_images(engine: Engine, say: Say) -> None:
    """Pull missing base images, or build them with mmdebstrap if the pull fails. Raises UsageError."""
    pulls = Pulls(engine, pull_sec=_PULL_SEC, retries=_FEW_RETRIES, say=say)
    for image, suite in base_images():
        if await engine.find(engine.api.inspect_image, image) is not None:
            continue
        try:
            await pulls.pull(ImageName.parse(image), "base")
        except PullFailed as error:
            say(f"base: {image} cannot be pulled ({one_line(str(error), 100)})")
            await _bootstrap(engine, image, suite, say)


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
        # Name with tag: Podman ignores a separate tag.
        await engine.call(
            engine.api.import_image_from_file, str(rootfs), repository=image, changes=changes, deadline_sec=_BUILD_SEC
        )
        say(f"base: {image} is ready")


@dataclass(frozen=True)
class Tools:
    """The tools volume of an engine, after a check."""

    volume: str
    was_filled: bool
    """Whether missing or changed files were replaced."""
    limits: Mapping[str, str]
    """Limits seen in the checking container, which had PROBE_LIMITS."""


_CHECKED: WeakKeyDictionary[Engine, Tools] = WeakKeyDictionary()


async def get_tools(engine: Engine, say: Say) -> Tools:
    """Return the tools volume, checked once per connection to an engine. Raises UsageError."""
    if engine not in _CHECKED:
        _CHECKED[engine] = await repair_tools(engine, say)
    return _CHECKED[engine]


async def ensure_tools(engine: Engine, say: Say, recipe: Path | None = None) -> str:
    """Make or repair the tools volume and return its name. Raises UsageError."""
    return (await repair_tools(engine, say, recipe)).volume


async def repair_tools(engine: Engine, say: Say, recipe: Path | None = None) -> Tools:
    """Check the tools volume and replace missing or changed files, without disturbing its users. Raises UsageError."""
    recipe = recipe or images_dir() / "tools"
    name = tools_volume_name(recipe)
    tag = tools_tag(recipe)
    log: list[str] = []
    try:
        is_new = await engine.find(engine.api.inspect_volume, name) is None
        if await engine.find(engine.api.inspect_image, tag) is None:
            # The image may have been removed to free space, and building it takes a mirror and a minute.
            if not is_new and (printed := await _check_without_image(engine, name)) is not None:
                return Tools(name, False, read_limits(printed))
            await ensure_base_images(engine, say)
            say("tools: building static tmux and terminfo (once, about a minute)")
            await build_own(engine, recipe, tag, "tools", log)
        printed = await _check_and_fill(engine, name, tag, is_new=is_new)
    except (BuildFailed, EngineError, TimeoutError) as error:
        why = f"{one_line(str(error), 300)}{last_lines(log)}"
        remedy = podman_remedy(str(error), is_rootless=engine.info.is_rootless) if engine.info.is_podman else ""
        raise UsageError(f"building the tools volume from {recipe} failed: {why}{remedy and f'; {remedy}'}") from error
    was_filled = "filled" in printed.splitlines()
    if was_filled:
        say(f"tools: volume {name} {'is ready' if is_new else 'was damaged and has been repaired'}")
    return Tools(name, was_filled, read_limits(printed))


async def _check_and_fill(engine: Engine, name: str, tag: str, *, is_new: bool) -> str:
    """Compare a volume with its image and copy missing files; returns the script's output. Raises EngineError."""
    if is_new:
        await engine.call(engine.api.create_volume, name, labels={LABEL_SHARED: "tools"})
    try:
        return await _run_check(engine, name, tag, f"v={_VOLUME} image={TOOLS} b=\n{_COMPARE}{_FILL}{_VERIFY}", "sh")
    except EngineError:
        if is_new:
            with contextlib.suppress(EngineError):  # if it is in use it stays, and the next run checks it
                await engine.call(engine.api.remove_volume, name)
        raise


async def _check_without_image(engine: Engine, name: str) -> str | None:
    """Check a volume with its own busybox; returns the output, or None if it is damaged. Raises EngineError."""
    busybox = f"{_VOLUME}/bin/busybox"
    script = f"v={_VOLUME} image= b={busybox}\n{_COMPARE}{_VERIFY}"
    try:
        return await _run_check(engine, name, None, script, busybox, "sh")
    except EngineError as error:
        if isinstance(error, EngineUnreachable):
            raise
        return None


async def _run_check(engine: Engine, name: str, image: str | None, script: str, *shell: str) -> str:
    return await run_helper(
        engine,
        name,
        f"{script}{READ_LIMITS}",
        labels={LABEL_SHARED: "tools", LABEL_OWNER: engine.owner},
        image=image,
        shell=shell,
        binds=[f"{name}:{_VOLUME}"],
        network_mode="none",
        **limits_host_config(PROBE_LIMITS, engine),
    )
