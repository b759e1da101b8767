"""Packages of Debian's: whether a file is what the package index of the image has at that path.

An installation may upgrade what the image has: newer libraries, a newer python, other programs behind a name. What dpkg
records in the container says only where to look. The packages are downloaded once more, in a fresh container with the
image's own apt, sources and keys. Where that cannot be done, nothing is excused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from posixpath import basename

from tbench.sandbox.backend import Copies, removed_afterwards
from tbench.verify.changes.facts import Seen
from tbench.verify.changes.packages import Sums
from tbench.verify.changes.signs import Sign
from tbench.verify.changes.tools import family

_EXCUSED = frozenset(
    {"tool-replaced", "library-changed", "loader", "module-shadowed", "python-startup", "pytest-added", "pytest-plugin"}
    | {"package-hook", "shell-startup", "tool-settings"}
)
_MOST = 60
"""Most packages that are compared."""
_DOWNLOAD_SEC = 180.0
_INFO = "/var/lib/dpkg/info/"
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]*(?::[a-z0-9-]+)?")
_MERGED = re.compile(r"/usr(?=/(?:bin|sbin|lib\w*)/)")
SUMS_OF_TREE = """find . -type l -exec sh -c 'for each; do
    to=$(readlink "$each")
    case $to in /*) [ ! -e ".$to" ] || ln -sfn "$PWD$to" "$each" ;; esac
done' sh {} +
find . ! -type d -exec sha256sum {} + 2>/dev/null
"""
"""Sums of the files of packages in this directory; a link leads to what the packages have there, not the container."""
_DOWNLOADS = """cd / && mkdir -p /.debs/tree/var/lib/dpkg/info && cd /.debs || exit 1
for architecture in {architectures}; do dpkg --add-architecture "$architecture"; done
apt-get update -qq >/dev/null 2>&1
for name in {names}; do
    rm -rf control *.deb
    apt-get download -qq "$name" >/dev/null 2>&1 && dpkg-deb -x *.deb tree && dpkg-deb -e *.deb control || continue
    for each in control/*; do cp "$each" "tree/var/lib/dpkg/info/$name.${{each#control/}}"; done
    [ ! -e control/postinst ] || grep -o '/[^ "]*' control/postinst | sed "s,^,names $name ,"
done
cd tree || exit 1
"""


@dataclass(frozen=True)
class _Index:
    """What the index has of some packages."""

    sums: dict[str, str] = field(default_factory=dict)
    """Sums of files by path."""
    names: set[tuple[str, str]] = field(default_factory=set)
    """Packages, and paths that their installation names: an alternative has no path in a package."""


async def excused_by_debian(sandbox: Copies, seen: Seen, signs: Collection[Sign], sums: Sums) -> list[Sign]:
    """The signs; those about files that are as the index has them say only that. Raises TrialError."""
    recorded = _recorded(seen)
    asked = (sign for sign in signs if sign.kind in _EXCUSED)
    places = {sign: place for sign in asked if (place := _place(seen, sign.path, recorded)) is not None}
    packages = {recorded[place] for place in places.values()}
    if not packages or len(packages) > _MOST:
        return list(signs)
    index = await _index(sandbox, packages)
    lies = await sums({sign.path for sign in places}) if index.sums else {}

    def is_genuine(sign: Sign) -> bool:
        place, found = places.get(sign), lies.get(sign.path)
        if place is None or found is None or not found.sha256 or found.sha256 != index.sums.get(place):
            return False
        return _stands_for(seen, sign.path, place) or (recorded[place], sign.path) in index.names

    words = "is a package's that is as Debian's index has it"
    return [Sign("package-added", sign.path, words) if is_genuine(sign) else sign for sign in signs]


def _recorded(seen: Seen) -> dict[str, str]:
    """Packages that were installed or upgraded, by the paths of their files."""
    found: dict[str, str] = {}
    for path in seen.changes:
        package, _, kind = path.removeprefix(_INFO).rpartition(".")
        if not path.startswith(_INFO) or not _PACKAGE.fullmatch(package):
            continue
        paths = (seen.content(path) or "").splitlines() if kind == "list" else [path]
        found |= dict.fromkeys(map(_merged, paths), package)
    return found


def _merged(path: str) -> str:
    """The path as packages have it that know of no merged /usr."""
    return _MERGED.sub("", path, count=1)


def _place(seen: Seen, path: str, recorded: Mapping[str, str]) -> str | None:
    """Where packages have what lies at the path now: there, or, for an alternative, at the path that it stands for."""
    if _merged(path) in recorded:
        return _merged(path)
    now = seen.now.get(path)
    if now is None or not now.sha256:
        return None
    same = (_merged(each) for each, found in seen.now.items() if found.sha256 == now.sha256)
    return next((each for each in same if each in recorded), None)


def _stands_for(seen: Seen, path: str, place: str) -> bool:
    """Whether the path is that of the package's file, or the image's link to a variant of it: python3 to python3.11."""
    is_link_of_image = path not in seen.changes and family(basename(path)) == family(basename(place))
    return place == _merged(path) or is_link_of_image


async def _index(sandbox: Copies, packages: Collection[str]) -> _Index:
    """What the index has; nothing of packages that cannot be had."""
    names = sorted(packages)
    foreign = {name.partition(":")[2] for name in names} - {""}
    script = _DOWNLOADS.format(names=shlex.join(names), architectures=shlex.join(sorted(foreign))) + SUMS_OF_TREE
    async with removed_afterwards(await sandbox.anew()) as fresh:
        told = await fresh.shell(script, timeout_sec=_DOWNLOAD_SEC, user="root")
    index = _Index()
    for line in told.output.decode("utf-8", "replace").splitlines():
        value, _, rest = line.partition(" ")
        if value == "names":
            package, _, path = rest.partition(" ")
            index.names.add((package, path))
        else:
            index.sums[_merged(rest.strip().removeprefix("."))] = value
    return index
