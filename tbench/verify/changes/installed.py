"""What the tests installed beside processes that the agent left: compared with what they install without them.

Whoever still runs while test.sh installs something can edit it before it is used. So the verifier also runs in a fresh
container with the agent's work, where no process of the agent's is, and what came there while it ran is what should
have come: what can run, at the same place, with the same content.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from posixpath import dirname

from tbench.sandbox.archive import sums_by_path
from tbench.sandbox.backend import Compares, Sandbox, output_of
from tbench.verify.changes.bytecode import contents_of, foreign_bytecode
from tbench.verify.changes.facts import File, Seen
from tbench.verify.changes.signs import Sign
from tbench.verify.changes.tools import console_package
from tbench.verify.report import Facts

UNCOMPARED = "installed-beside"
"""Kind of the weak signs about what came while tests installed something beside processes of the agent."""
EDITED = "changed-meanwhile"
"""Kind of the strong ones: it is not what the tests install elsewhere."""
_TELL_SEC = 120.0
_LATER_SEC = 0.3
"""How much later than the last record of an installation something is written that does not belong to it."""
_CACHE = re.compile(r".*?/\.(?:cache|local/share)/(?:uv|pip)(?=/)")
_WATCHED = re.compile(r"/(?:etc|usr/lib|usr/local/lib|usr/libexec|lib64)(?:/.*)?")
_CODE = re.compile(
    r".*\.(?:pyc?|pth|so(?:\.[\w.]+)?|sh|pl|pm|rb|[cm]?js|php|jar|h|zip|egg|pyz|_pth)"
    r"|.*/(?:entry_points\.txt|pyvenv\.cfg)|.*/(?:s?bin|libexec)/[^/]+"
)
_OTHER_SHELLS = re.compile(r".*/bin/(?:de)?activate\.\w+")
"""What enters an environment in shells that test.sh is not run by; these name the directory that uv drew."""
_RECORD = re.compile(r".*\.dist-info/RECORD|/var/lib/dpkg/status")
"""Written when a package is installed, after what it has."""
_RANDOM = re.compile(r"(?<=/archive-v0/)[^/]+|(?<=/builds-v0/)[^/]+")
"""Names of directories that uv draws by lot."""
_TEXTS = re.compile(r"/usr/share/(?:doc|man|info|locale|icons|mime|fonts|applications|lintian|bug)/.*")


@dataclass(frozen=True)
class Thing:
    """What lies at a path: a file, or a link."""

    mode: int
    changed_at: float
    """When its status changed; it cannot be dated back from inside."""
    content: str = ""
    """Its sum, or for a link to anything but a file its target; empty for all other things."""


@dataclass(frozen=True)
class Late:
    """What came to the agent's container while the tests ran."""

    seen: Seen
    signs: Collection[Sign]
    """Signs about all of the container, those about what came late among them."""
    paths: Collection[str]
    brought: Collection[str] = ()
    """Paths that are brought to the control before its tests run."""


# -- what came late ------------------------------------------------------------------------------


def late_paths(seen: Seen, facts: Facts | None) -> frozenset[str]:
    """Paths that test.sh may have changed itself, where it installs what it needs."""
    if facts is None or not seen.tests.installs:
        return frozenset()
    before = facts.changed_before
    above = {str(folder) for path in before for folder in PurePosixPath(path).parents}
    # Of a cache only the directory is named.
    early = before | above
    return frozenset(
        path
        for path in _watched(seen, seen.changes)
        if path not in early and not ((cache := _CACHE.match(path)) and cache[0] in before)
    )


def _watched(seen: Seen, paths: Collection[str]) -> Iterator[str]:
    """Those of the paths that lie where tools and packages are installed."""
    homes = f"{seen.image.home}/.local", f"{seen.image.home}/.cache"
    places = tuple(f"{each}/" for each in (*seen.image.search_path, *homes))
    return (path for path in paths if _WATCHED.fullmatch(path) or path.startswith(places))


def late_code(seen: Seen, facts: Facts) -> frozenset[str]:
    """Paths that came late, beside processes that the agent left, if anything that can run is among them."""
    if not facts.leftovers:
        return frozenset()
    late = frozenset(
        path for path in late_paths(seen, facts) if seen.changes[path] != "removed" and not _TEXTS.fullmatch(path)
    )
    return late if any(map(_CODE.fullmatch, late)) else frozenset()


# -- the comparison ------------------------------------------------------------------------------


async def compared(sandbox: Sandbox, control: Sandbox, late: Late) -> tuple[Sign, ...] | None:
    """The signs, when those about what came late are replaced by what a comparison with the control shows.

    In the control the verifier has run, beside nothing that the agent left. None where it installed nothing. Raises
    TrialError.
    """
    if not isinstance(control, Compares):
        return None
    changes = await control.changes()
    there = await _things(
        control, {path for path in _watched(late.seen, changes) if changes[path] != "removed"} - set(late.brought)
    )
    if not any(_is_code(path, thing) for path, thing in there.items()):
        return None
    doubted = {sign.path for sign in late.signs if sign.kind == UNCOMPARED}
    here = await _things(sandbox, {*late.paths, *doubted})
    sites = sorted({dirname(dirname(path)) for path in there if path.endswith("/pytest/__init__.py")})
    compiled = {path for path, thing in here.items() if path.endswith(".pyc") and thing.content}
    bytecode, unread = await foreign_bytecode(sandbox, control, compiled, sites)
    foreign = {path for path in late.paths if not path.isprintable() and _CODE.fullmatch(path.replace("\n", " "))}
    foreign |= bytecode | set(_foreign(here, there, doubted))
    foreign -= await _same_scripts(sandbox, control, late.seen, foreign & there.keys())
    return (
        *(sign for sign in late.signs if sign.kind != UNCOMPARED),
        *(
            Sign(EDITED, path, "is not what the tests install where nothing of the agent's runs")
            for path in sorted(foreign)
        ),
        *(Sign(EDITED, path, "was written after it had been installed") for path in sorted(_rewritten(here, there))),
        *(Sign(UNCOMPARED, path, "is bytecode that no python reads where it is compared") for path in sorted(unread)),
    )


async def _same_scripts(sandbox: Sandbox, control: Sandbox, seen: Seen, paths: Collection[str]) -> set[str]:
    """Those of the paths where an installer of another version wrote a script for the same package's program."""
    scripts = {path for path in paths if "/bin/" in path}
    if not scripts:
        return set()
    packages = []
    for each in (sandbox, control):
        contents = await contents_of(each, scripts)
        holding = dataclasses.replace(seen, now={path: File(0, content=data) for path, data in contents.items()})
        packages.append({path: console_package(holding, path) for path in scripts})
    here, there = packages
    return {path for path in scripts if here[path] and here[path] == there[path]}


def _foreign(here: Mapping[str, Thing], there: Mapping[str, Thing], doubted: Collection[str]) -> Iterator[str]:
    """What can run, or what a rule speaks of, and is not in the control with this content."""
    known = {(place(path), thing.content) for path, thing in there.items()}
    for path, thing in here.items():
        is_asked = thing.content and not path.endswith(".pyc") and (path in doubted or _is_code(path, thing))
        if is_asked and (place(path), thing.content) not in known:
            yield path


def _rewritten(here: Mapping[str, Thing], there: Mapping[str, Thing]) -> Iterator[str]:
    """What can run and was written when all had been installed, though not in the control: it may have been other."""
    ended_here, ended_there = _ended(here), _ended(there)
    if ended_here and ended_there:
        in_time = {place(path) for path, thing in there.items() if thing.changed_at <= ended_there}
        for path, thing in here.items():
            is_late = thing.changed_at > ended_here + _LATER_SEC
            if is_late and (_is_code(path, thing) or _is_package(path, thing)) and place(path) in in_time:
                yield path


def _ended(things: Mapping[str, Thing]) -> float:
    """When the last package was recorded; 0 where none was."""
    return max((thing.changed_at for path, thing in things.items() if _RECORD.fullmatch(path)), default=0.0)


def _is_code(path: str, thing: Thing) -> bool:
    """Whether it can run, or leads to what can: a link to a directory may lead to other modules."""
    if not thing.content or _OTHER_SHELLS.fullmatch(path):
        return False
    return thing.mode >> 12 == 0o12 or bool(thing.mode & 0o111) or _CODE.fullmatch(path) is not None


def _is_package(path: str, thing: Thing) -> bool:
    """Whether it is a directory of modules: it changes when something is put there and taken away again."""
    return thing.mode >> 12 == 0o4 and "-packages/" in path and not path.endswith("/__pycache__")


def place(path: str) -> str:
    """The path without what is drawn by lot."""
    return _RANDOM.sub("*", path)


# -- what lies there -----------------------------------------------------------------------------


async def _things(sandbox: Sandbox, paths: Collection[str]) -> dict[str, Thing]:
    """What lies at those of the paths that are printable, and when the last package of Debian's was installed."""
    lines = [f"{path}\n" for path in sorted({*paths, "/var/lib/dpkg/status"}) if path.isprintable()]
    output = await output_of(sandbox, _script(), timeout_sec=_TELL_SEC, stdin="".join(lines).encode())
    told, _, sums = output.decode("utf-8", "surrogateescape").partition("\0")
    contents = sums_by_path(sums)
    things = {}
    for line in told.split("\n"):
        words = line.split(" ", 4)
        if len(words) == 5:
            path, _, target = words[4].removeprefix("'").removesuffix("'").partition("' -> '")
            content = contents.get(path) or place(target)
            things[path] = Thing(int(words[0], 16), _seconds(*words[1:4]), content)
    return things


def _seconds(day: str, time: str, zone: str) -> float:
    """A time as stat tells it, which counts in parts of a second that no other way of asking gives."""
    whole, _, part = time.partition(".")
    return datetime.datetime.fromisoformat(f"{day} {whole}{zone}").timestamp() + float(f"0.{part or 0}")


@cache
def _script() -> str:
    return Path(__file__).with_name("installed.sh").read_text()
