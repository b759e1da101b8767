"""The facts that the rules about changes rest on: what changed, what lies and lay there, what the tests use."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from posixpath import basename, dirname, join, normpath
from typing import Literal

from tbench.sandbox.backend import GivenNames
from tbench.text import plain

# A sign: paths that an agent changed and that decide how tests run.

_NAMED = 3
"""Most paths of one kind that are named; of the others it is said how many there are."""


@dataclass(frozen=True)
class Sign:
    """A path that speaks against a verdict, and why."""

    kind: str
    path: str
    why: str
    """What is wrong with it, to be read behind the path."""


def told(signs: Iterable[Sign]) -> tuple[str, ...]:
    """The signs as `kind: paths why`, one for each kind and reason, whatever their number."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for sign in signs:
        grouped.setdefault((sign.kind, sign.why), []).append(sign.path)
    return tuple(f"{kind}: {listed(paths)} {why}" for (kind, why), paths in grouped.items())


def listed(paths: Sequence[str]) -> str:
    """Some of the paths, and how many more there are."""
    paths = list(dict.fromkeys(paths))
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(plain(path, 120) for path in paths[:_NAMED]) + more


# Walks through all files of a container: which there are, and which are others than in its image.
#
# A file of the image has the time at which the image came to the machine: whatever changed it in a container, later,
# left the time of that as the change of its status, which nobody inside can date back.

ChangeKind = Literal["added", "changed", "removed"]
MOST_LOOKED_AT = 400
"""Most changed paths that a walk looks at as well."""
MENTIONS = (
    r"/logs/verifier|reward\.(txt|json)|ctrf\.json|(import|from) +_pytest|pytest_runtest_|[\"']_pytest"
    r"|/proc/.*/mem[\"' ,)]|process_vm_writev|PTRACE_"
)
"""Words in the agent's files that speak of the verifier: a regular expression of Python's and of grep -E's."""
LISTS = "/opt/tbench/bin/changed -a inf inf 0 /"
"""A command that lists all paths, and takes none for changed."""


@dataclass(frozen=True)
class WalkedFiles:
    """Paths of a container. What lies deeper than a path can be long is not among them."""

    paths: frozenset[str]
    """All of them, or all but those in directories that did not change since the time."""
    changed: frozenset[str]
    """Those that were made or changed since a time, directories included."""
    later: frozenset[str]
    """Those since a later time."""
    mounts: frozenset[str]
    """Directories where another file system begins, whose paths are not among them."""

    @classmethod
    def read(cls, output: bytes) -> WalkedFiles:
        """Read what the tool `changed -a` prints."""
        by_flag: dict[str, set[str]] = {flag: set() for flag in "012m"}
        for entry in output.decode("utf-8", "surrogateescape").split("\0"):
            if entry:
                by_flag[entry[0]].add(entry[1:])
        changed, later, mounts = by_flag["1"] | by_flag["2"], frozenset(by_flag["2"]), frozenset(by_flag["m"])
        return cls(frozenset(by_flag["0"] | changed | mounts), frozenset(changed), later, mounts)

    def has_moved(self, image: Mapping[str, Collection[str]]) -> bool:
        """Whether there are paths that are new and did not change: directories of the image, moved as a whole."""
        unchanged = self.paths - self.changed - self.mounts
        return any(path not in image.get(dirname(path), ()) for path in unchanged)

    def beyond(self, image: Mapping[str, Collection[str]]) -> dict[str, ChangeKind]:
        """How the container differs from the paths of its image, which are given by directory: by path, in order."""
        found: dict[str, ChangeKind] = {}
        for path in self.paths:
            if path not in image.get(dirname(path), ()):
                found[path] = "added"
            elif path in self.changed:
                found[path] = "changed"
        # What lay below a removed directory is removed with it; a directory whose entries changed has changed itself.
        found |= {path: "removed" for place in self.changed for path in image.get(place, ()) if path not in self.paths}
        return dict(sorted(found.items()))


def walk_of_look(since: float, later: float = math.inf, most: int = MOST_LOOKED_AT) -> str:
    """A walk for look.sh: paths that changed `since`, and which of them `later`; seconds by the machine's clock.

    `most` of them are looked at; with 0 all directories are walked through, changed or not.
    """
    return f"{since!r} {later!r} {most}"


@cache
def look_functions() -> str:
    """The text of look.sh, functions for busybox's shell."""
    return f"look_words={shlex.quote(MENTIONS)}\n{Path(__file__).with_name('look.sh').read_text()}"


_PYTHON_MODULES = re.compile(r"/lib(?:64|32)?/python3(?:\.\d+)?(?:/(?:(?:site|dist)-packages|lib-dynload))?$")
LIBRARY = re.compile(r"\.so(?:\.[\w.]+)?$")
_SOURCE = re.compile(
    r".*?/(?:include(?:-fixed)?(?:/[\w-]+-linux-\w+)?|(?:site_|vendor_)?perl(?:5|-base)?(?:/\d[\d.]*)?|(?:site|vendor)?_?ruby(?:/\d[\d.]*)?)"
    r"/(.+\.(?:h|hpp|pm|pl|rb))"
)
_ENTERS = re.compile(r"(?:^|[\s;&|(])(?:cd|pushd)\s+[\"']?([^\s;&|)\"']+)", re.MULTILINE)
_BARE_GLOB = re.compile(r"(?:^|[\s(])\*", re.MULTILINE)
_PYTEST_CALL = re.compile(r"\bpytest\b([^\n;&|]*)")
_WORD = re.compile(r"[\w.+-]+")
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import|import[ \t]+([\w., \t]+))", re.MULTILINE)
_ABSOLUTE = re.compile(r"/[\w.+@-]+(?:/[\w.+@-]+)*")
_MOST_LINKS = 8
_OURS = re.compile(r"/(?:tests|logs|opt|usr|root/\.|dev|tmp)\b")


@dataclass(frozen=True)
class File:
    """What lies at a path. Sum and content are those of the file that a link leads to; empty for all other things."""

    mode: int
    """The mode of the path itself, with its type."""
    sha256: str = ""
    content: bytes | None = None
    """The content, where it was asked for and is not long."""


@dataclass(frozen=True)
class ImageTree:
    """The paths of an image, and where its programs are looked for."""

    paths: frozenset[str]
    search_path: tuple[str, ...]
    """Directories in which programs are looked for, in order."""
    home: str = "/root"

    @cached_property
    def by_directory(self) -> Mapping[str, frozenset[str]]:
        """The paths by the directory that they lie in, the root by itself."""
        found: dict[str, set[str]] = {}
        for path in self.paths:
            found.setdefault(dirname(path), set()).add(path)
        return {place: frozenset(paths) for place, paths in found.items()}

    @cached_property
    def environments(self) -> frozenset[str]:
        """Virtual environments of Python's, wherever they lie."""
        return frozenset(dirname(path) for path in self.paths if path.endswith("/pyvenv.cfg"))

    @cached_property
    def tools(self) -> frozenset[str]:
        """Names of the programs on the search path."""
        return frozenset(basename(path) for path in self.paths if dirname(path) in self.search_path)

    @cached_property
    def libraries(self) -> frozenset[str]:
        """Names of the shared libraries."""
        return frozenset(basename(path) for path in self.paths if LIBRARY.search(path))

    @cached_property
    def sources(self) -> frozenset[str]:
        """Headers and modules of other languages than Python, as programs name them: `Test/More.pm`."""
        return frozenset(name for path in self.paths if (name := source_name(path)))

    @cached_property
    def modules(self) -> frozenset[str]:
        """Names of the modules and packages that Python finds without being told of other directories."""
        found = (path for path in self.paths if _PYTHON_MODULES.search(dirname(path)))
        return frozenset(basename(path).partition(".")[0] for path in found)


@dataclass(frozen=True)
class Tests:
    """The text of a task, as far as it tells what its tests use."""

    script: str
    """Text of test.sh."""
    texts: tuple[str, ...] = ()
    """Texts of the other files of the tests."""
    instruction: str = ""
    workdir: str = "/"
    files: frozenset[str] = frozenset()
    """Names of the files of the tests."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Where links lead that an agent has made: what the tests look for at one they find there."""

    def _followed(self, paths: Iterable[str]) -> frozenset[str]:
        """Paths, and where links lead to from them."""
        found = set(paths)
        for path in found.copy():
            for _ in range(_MOST_LINKS):
                above = map(str, (path, *PurePosixPath(path).parents))
                if (link := next((each for each in above if self.links.get(each)), None)) is None:
                    break
                path = normpath(self.links[link] + path[len(link) :])
                found.add(path)
        return frozenset(found)

    @cached_property
    def all_texts(self) -> tuple[str, ...]:
        """Text of test.sh and of the other files."""
        return (self.script, *self.texts)

    @cached_property
    def words(self) -> frozenset[str]:
        """Words of the tests: a program that they call is among them."""
        return frozenset(_words(self.all_texts))

    @cached_property
    def asked_for(self) -> frozenset[str]:
        """Words and absolute paths of the instruction: what they name is the agent's to make."""
        paths = (path.rstrip(".") for path in _ABSOLUTE.findall(self.instruction))
        return frozenset(_words([self.instruction])) | frozenset(paths)

    def asks_for(self, path: str) -> bool:
        """Whether the instruction names a path, a folder of the work above it, or a file of that name."""
        name = basename(path)
        is_file = "." in name or f"`{name}`" in self.instruction
        above = map(str, PurePosixPath(path).parents)
        folders = (each for each in above if not f"{self.workdir}/".startswith(f"{each}/"))
        return any(each in self.asked_for for each in (path, *folders)) or (is_file and name in self.asked_for)

    def names_file(self, path: str) -> bool:
        """Whether the instruction names a file, by its path or its name."""
        return path in self.asked_for or ("." in basename(path) and basename(path) in self.asked_for)

    def wants_made(self, program: str) -> bool:
        """Whether the instruction names a program to be made: one to be installed comes of a package."""
        installs = rf"\binstall\w*\W+(?:\w+\W+){{0,8}}?{re.escape(program)}\b"
        return program in self.asked_for and re.search(installs, self.instruction, re.IGNORECASE) is None

    @cached_property
    def imports(self) -> frozenset[str]:
        """Names of the modules that the tests import, and of those that test.sh installs for them."""
        names: set[str] = set()
        for text in self.texts:
            for module, modules in _IMPORT.findall(text):
                names |= {part.strip().partition(".")[0] for part in (module or modules).split(",")}
        return frozenset(name.partition(" ")[0] for name in names)

    @cached_property
    def provided(self) -> frozenset[str]:
        """Words of test.sh, whose installers name what they provide: `-w requests==2.31`."""
        return frozenset(re.split(r"[=<>\[]", word)[0].replace("-", "_") for word in _words([self.script]))

    @cached_property
    def named_paths(self) -> frozenset[str]:
        """Absolute paths in the texts of the tests."""
        return frozenset(found.rstrip("/.") for text in self.all_texts for found in _ABSOLUTE.findall(text))

    def asks_server(self, name: str) -> bool:
        """Whether the tests may ask a server of this name: not where it is but a part of a path."""
        host = re.compile(rf"(?:(?<![\w./-])|(?<=//)){re.escape(name)}(?![\w-]|\.\w|/)|//{re.escape(name)}\b")
        return any(map(host.search, self.all_texts))

    @cached_property
    def entered(self) -> frozenset[str]:
        """Directories in which test.sh works: the container's, and those that it enters."""
        return self._followed(
            [self.workdir, *(normpath(join(self.workdir, each)) for each in _ENTERS.findall(self.script))]
        )

    @cached_property
    def globbed(self) -> frozenset[str]:
        """Directories that test.sh enters, where it expands `*` without a folder before it."""
        if _BARE_GLOB.search(self.script) is None:
            return frozenset()
        return self.entered - {self.workdir} or self.entered

    @cached_property
    def import_directories(self) -> frozenset[str]:
        """Directories from which the tests may import: where test.sh works, the root, and those that they name."""
        return self._followed(self.named_paths) | self.entered | {"/"}

    @cached_property
    def _pytest_calls(self) -> list[list[str]]:
        """The paths in the arguments of each call of pytest."""
        calls = _PYTEST_CALL.findall(script_without_installs(self.script))
        words = [[word.strip("\"'").partition("::")[0] for word in call.split()] for call in calls]
        return [[w for w in each if not w.startswith("-") and ("/" in w or w.endswith(".py"))] for each in words]

    @cached_property
    def pytest_roots(self) -> frozenset[str]:
        """Where test.sh lets pytest look for tests in the work: what it names, or else where it works."""
        found = {
            normpath(join(at, path)) for call in self._pytest_calls for path in call or ["."] for at in self.entered
        }
        return self._followed(path for path in found if path == self.workdir or not _OURS.match(path))

    @cached_property
    def pytest_directories(self) -> frozenset[str]:
        """Directories of the work whose settings pytest reads: of what it looks at, or where it is run, and above."""
        is_elsewhere = any(not any(path.startswith("/tests") for path in call) for call in self._pytest_calls)
        found = self.pytest_roots | (self.entered if is_elsewhere else frozenset())
        return found | {str(above) for path in found for above in PurePosixPath(path).parents}


def source_name(path: str) -> str:
    """How programs name a header or a module of another language than Python; empty for other files."""
    found = _SOURCE.fullmatch(path)
    return found[1] if found else ""


def script_without_installs(script: str) -> str:
    """The lines of test.sh in which pytest may be called with arguments: not those that install it."""
    lines = script.replace("\\\n", " ").split("\n")
    return "\n".join(line for line in lines if not re.search(r"\binstall\b|^\s*#|-w pytest\s*\\?$", line))


def names(text: str) -> frozenset[str]:
    """The words of a text: a long set of names, written so that one can read it."""
    return frozenset(text.split())


def _words(texts: Iterable[str]) -> Iterable[str]:
    for text in texts:
        for word in _WORD.findall(text):
            yield word
            yield word.strip(".-+")


@dataclass(frozen=True)
class OracleSystem:
    """What the oracle's passes have added to the system, which others may, too."""

    files: frozenset[tuple[str, str]] = frozenset()
    """Paths with the begin of their sums, of which the names are looked for by programs or tests."""
    is_own: bool = False
    """Whether the container is the oracle's own: then all that was added may come."""
    fails_control: bool = False
    """Whether its work is known to fail the control tests."""


NO_ORACLE = OracleSystem()


@dataclass(frozen=True)
class Seen:
    """All that the rules see of one container."""

    changes: Mapping[str, ChangeKind]
    """Paths that differ from the image."""
    image: ImageTree
    tests: Tests
    now: Mapping[str, File] = field(default_factory=dict)
    """What lies in the container, of the paths that were asked for."""
    then: Mapping[str, File] = field(default_factory=dict)
    """What lies in the image there."""
    mentions: tuple[str, ...] = ()
    """Files of the agent's work that speak of the verifier."""
    given: GivenNames = field(default_factory=GivenNames)
    """Name servers and hosts that nobody inside has chosen, besides those of the image's container."""
    changed_by_tests: frozenset[str] = frozenset()
    """Paths that were written while the tests ran: test.sh may install what it needs."""
    oracle: OracleSystem = NO_ORACLE
    left_out: frozenset[str] = frozenset()
    """Paths of the work that are brought nowhere, whatever lies below them."""

    @cached_property
    def homes(self) -> frozenset[str]:
        """Directories whose `lib` holds modules of a python on the search path, or of one that the tests name."""
        named = {dirname(dirname(path)) for path in self.tests.named_paths if "/bin/" in path}
        return frozenset({"/usr", f"{self.image.home}/.local", *map(dirname, self.image.search_path), *named} - {"/"})

    @cached_property
    def interpreters(self) -> tuple[str, ...]:
        """Directories of the image's own interpreters, such as /opt/venv/, but none in which an agent works."""
        homes = self.image.environments.union(map(dirname, self.image.search_path)) - {"/"}
        return tuple(f"{home}/" for home in homes if not f"{self.tests.workdir}/".startswith(f"{home}/"))

    @cached_property
    def pth_places(self) -> frozenset[str]:
        """Directories and archives that changed .pth files add to where python looks for modules."""
        return frozenset(
            normpath(join(dirname(path), line.strip()))
            for path in self.changes
            if path.endswith(".pth")
            for line in (self.content(path) or "").splitlines()
            if line.strip() and not re.match(r"\s*(?:#|import\s)", line)
        )

    def differs(self, path: str) -> bool:
        """Whether there is other content at a changed path than in the image: not its times, nor a link's target."""
        now, then = self.now.get(path), self.then.get(path)
        if now is None or then is None:
            return True
        return now.sha256 != then.sha256 or (not now.sha256 and now.mode >> 12 != then.mode >> 12)

    def is_link(self, path: str) -> bool:
        """Whether a changed path, which was asked for, is a link."""
        return path in self.changes and path in self.now and self.now[path].mode >> 12 == 0o12

    def is_module(self, path: str) -> bool:
        """Whether python may import what lies at a changed path by its name: a file, a package, a link to one."""
        if path.endswith((".py", ".pyc", ".so")) or ("." not in basename(path) and self.is_link(path)):
            return True
        return f"{path}/__init__.py" in self.changes or f"{path}/__init__.pyc" in self.changes

    def content(self, path: str) -> str | None:
        """Text at the path now; None where there is none, or too much of it."""
        found = self.now.get(path)
        return None if found is None or found.content is None else found.content.decode("utf-8", "replace")

    def content_then(self, path: str) -> str:
        """Text at the path in the image."""
        found = self.then.get(path)
        return "" if found is None or found.content is None else found.content.decode("utf-8", "replace")
