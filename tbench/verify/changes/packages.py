"""Packages of Python's: whether what an agent installed is, file by file, what the index has under that name.

Records in a container are the agent's to write. So the package is downloaded once more, in a fresh container with the
image's own pip, and what lies in the agent's container is compared with it. Where that cannot be done, nothing is
excused.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from posixpath import dirname, normpath

from tbench.sandbox.backend import Copies, removed_afterwards
from tbench.verify.changes.facts import File, Seen
from tbench.verify.changes.signs import Sign
from tbench.verify.changes.tools import console_package

_EXCUSED = frozenset(
    {"python-startup", "pytest-plugin", "pytest-added", "library-changed", "module-shadowed", "tool-replaced"}
)
_MOST = 40
"""Most packages that are compared."""
_INFO = re.compile(r"(?P<site>/.*-packages)/(?P<name>[\w.]+)-(?P<version>[\w.!+]+)\.dist-info/RECORD")
_DOWNLOAD_SEC = 180.0
_DOWNLOADS = """export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_RETRIES=1 PIP_DEFAULT_TIMEOUT=20 PIP_NO_CACHE_DIR=1
failed=0   # a package may be the agent's own; where many cannot be had, there is no index
for name in {names}; do
    python3 -m pip download -q --no-deps --only-binary=:all: -d /.wheels "$name" >/dev/null 2>&1 && continue
    failed=$((failed + 1))
    [ $failed -lt 3 ] || break
done
python3 - <<'END'
import glob, hashlib, os, zipfile
for path in glob.glob("/.wheels/*.whl"):
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            package = "-".join(os.path.basename(path).split("-")[:2])
            print(hashlib.sha256(wheel.read(name)).hexdigest(), package, name)
END
"""

Sums = Callable[[set[str]], Awaitable[Mapping[str, File]]]
"""Tells what lies at paths of the agent's container."""


@dataclass(frozen=True)
class Package:
    """A package that is recorded in the agent's container."""

    site: str
    name: str
    version: str
    paths: frozenset[str]
    """Paths of its files, by its own record."""

    def owns(self, path: str, *, is_gone: bool = False) -> bool:
        """Whether it has this file, or files below this directory; of what is gone, whether it may have replaced it."""
        if is_gone:
            return path.startswith(self.folders)
        return path in self.paths or any(each.startswith(f"{path}/") for each in self.paths)

    @property
    def folders(self) -> tuple[str, ...]:
        """Its directories in the site, each with a slash behind it."""
        below = {path.removeprefix(f"{self.site}/") for path in self.paths if path.startswith(f"{self.site}/")}
        return tuple({f"{self.site}/{name.split('/')[0]}/" for name in below if "/" in name})


async def excused(sandbox: Copies, seen: Seen, signs: Collection[Sign], sums: Sums) -> list[Sign]:
    """The signs; those about files of packages that are as the index has them say only that. Raises TrialError."""
    recorded = _recorded(seen)
    # A script is written by the installer, and in no package.
    doubtful = [sign for sign in signs if sign.kind != "tool-replaced" or console_package(seen, sign.path)]
    owners = {
        sign: {each for each in recorded if each.owns(sign.path, is_gone=seen.changes.get(sign.path) == "removed")}
        for sign in doubtful
        if sign.kind in _EXCUSED
    }
    asked = set[Package]().union(*owners.values())
    if not asked or len(asked) > _MOST:
        return list(signs)
    genuine = await _genuine(sandbox, seen, asked, sums)
    return [
        Sign("package-added", sign.path, "is a package's that is as the index has it")
        if owners.get(sign) and owners[sign] <= genuine
        else sign
        for sign in signs
    ]


def _recorded(seen: Seen) -> list[Package]:
    packages = []
    for path in seen.changes:
        found, text = _INFO.fullmatch(path), seen.content(path)
        if found and text is not None:
            names = [line.rsplit(",", 2)[0].strip('"') for line in text.splitlines()]
            paths = frozenset(normpath(f"{found['site']}/{name}") for name in names if name)
            packages.append(Package(found["site"], found["name"], found["version"], paths))
    return packages


async def _genuine(sandbox: Copies, seen: Seen, packages: Collection[Package], sums: Sums) -> set[Package]:
    published = await _published(sandbox, sorted({(each.name, each.version) for each in packages}))
    return {
        package
        for package in packages
        if (files := published.get(f"{package.name}-{package.version}".lower()))
        and await _is_same(seen, package, {f"{package.site}/{name}": value for name, value in files.items()}, sums)
    }


async def _published(sandbox: Copies, wanted: Collection[tuple[str, str]]) -> dict[str, dict[str, str]]:
    """Sums of the files of packages as the index has them, by package and path; without those that cannot be had."""
    async with removed_afterwards(await sandbox.anew()) as fresh:
        script = _DOWNLOADS.format(names=" ".join(f"'{name}=={version}'" for name, version in wanted))
        told = await fresh.shell(script, timeout_sec=_DOWNLOAD_SEC, user="root")
    found: dict[str, dict[str, str]] = {}
    for line in told.output.decode("utf-8", "replace").splitlines():
        value, _, rest = line.partition(" ")
        package, _, name = rest.partition(" ")
        # What belongs elsewhere is put there by the installer, as the record is written by it. A directory has no sum.
        if ".data/" not in name and not name.endswith(("/RECORD", "/")):
            found.setdefault(package.lower(), {})[name] = value
    return found


async def _is_same(seen: Seen, package: Package, files: Mapping[str, str], sums: Sums) -> bool:
    beside = (path for path in seen.changes if path.startswith(package.folders) and path not in files)
    folders = {str(above) for path in seen.changes for above in PurePosixPath(path).parents}
    if any(path not in folders and not _is_harmless(seen, path) for path in beside):
        return False
    lies = await sums(set(files))
    return all(path in lies and lies[path].sha256 == value for path, value in files.items())


def _is_harmless(seen: Seen, path: str) -> bool:
    """Whether a file beside the package's own is gone, bytecode, or what an installer writes."""
    return seen.changes[path] == "removed" or "/__pycache__" in path or dirname(path).endswith(".dist-info")
