"""Facts for the rules about changes: the changed paths, their files now and in the image, what the tests use."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from posixpath import basename, dirname, join, normpath
from typing import Literal

from tbench.sandbox.backend import BackendFacts
from tbench.text import names_text, plain


@dataclass(frozen=True)
class Sign:
    """A path that is a reason to distrust a verdict."""

    kind: str
    path: str
    why: str
    """The reason, worded to follow the path."""


def sign_lines(signs: Iterable[Sign]) -> tuple[str, ...]:
    """Return the signs as lines `kind: paths why`, one for each kind and reason."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for sign in signs:
        grouped.setdefault((sign.kind, sign.why), []).append(sign.path)
    return tuple(f"{kind}: {path_list(paths)} {why}" for (kind, why), paths in grouped.items())


def path_list(paths: Iterable[str]) -> str:
    """Return the first three paths, and the number of the others, as text."""
    return names_text((plain(path, 120) for path in dict.fromkeys(paths)), 3)


# A walk finds changed files by their ctime: processes in a container cannot set it back, and files of the image have
# the time at which the image was stored on the machine.

ChangeKind = Literal["added", "changed", "removed"]
MAX_INSPECTED = 400
"""Maximum number of changed paths that are inspected together with a walk."""
LIST_ALL_PATHS = "/opt/tbench/bin/changed -a inf inf 0 /"
"""A command that lists all paths, and reports none as changed."""


@dataclass(frozen=True)
class WalkedFiles:
    """Paths of a container, except for those longer than the system allows."""

    paths: frozenset[str]
    """All paths, or only those in directories that changed since the reference time."""
    changed: frozenset[str]
    """Paths created or changed since the reference time, directories included."""
    later: frozenset[str]
    """Paths changed since a second, later time."""
    mounts: frozenset[str]
    """Mount points, whose contents are not walked."""

    @classmethod
    def read(cls, output: bytes) -> WalkedFiles:
        """Parse the output of the tool `changed -a`."""
        by_flag: dict[str, set[str]] = {flag: set() for flag in "012m"}
        for entry in output.decode("utf-8", "surrogateescape").split("\0"):
            if entry:
                by_flag[entry[0]].add(entry[1:])
        changed, later, mounts = by_flag["1"] | by_flag["2"], frozenset(by_flag["2"]), frozenset(by_flag["m"])
        return cls(frozenset(by_flag["0"] | changed | mounts), frozenset(changed), later, mounts)

    def has_moved_directory(self, image: Mapping[str, Collection[str]]) -> bool:
        """Whether a directory of the image was moved as a whole: its new paths count as unchanged."""
        unchanged = self.paths - self.changed - self.mounts
        return any(path not in image.get(dirname(path), ()) for path in unchanged)

    def beyond(self, image: Mapping[str, Collection[str]]) -> dict[str, ChangeKind]:
        """Compare with the image's paths, given by directory. Returns the differences, ordered by path."""
        found: dict[str, ChangeKind] = {}
        for path in self.paths:
            if path not in image.get(dirname(path), ()):
                found[path] = "added"
            elif path in self.changed:
                found[path] = "changed"
        # A directory whose entries changed has changed itself.
        found |= {path: "removed" for place in self.changed for path in image.get(place, ()) if path not in self.paths}
        return dict(sorted(found.items()))


def walk_argument(since: float, later: float = math.inf, most: int = MAX_INSPECTED) -> str:
    """Return the argument of look.sh for paths changed since `since` and since `later`, in the machine's Unix seconds.

    The first `most` of them are inspected. With 0, none are, and unchanged directories are walked, too.
    """
    return f"{since!r} {later!r} {most}"


@cache
def look_functions() -> str:
    """Return the text of look.sh: functions for busybox's shell."""
    return Path(__file__).with_name("look.sh").read_text()


_PYTHON_MODULES = re.compile(r"/lib(?:64|32)?/python3(?:\.\d+)?(?:/(?:(?:site|dist)-packages|lib-dynload))?$")
LIBRARY = re.compile(r"\.so(?:\.[\w.]+)?$")
_SOURCE = re.compile(
    r".*?/(?:include(?:-fixed)?(?:/[\w-]+-linux-\w+)?|(?:site_|vendor_)?perl(?:5|-base)?(?:/\d[\d.]*)?|(?:site|vendor)?_?ruby(?:/\d[\d.]*)?)"
    r"/(.+\.(?:h|hpp|pm|pl|rb))"
)
_ENTERED = re.compile(r"(?:^|[\s;&|(])(?:cd|pushd)\s+[\"']?([^\s;&|)\"']+)", re.MULTILINE)
_PYTEST_CALL = re.compile(r"\bpytest\b([^\n;&|]*)")
_WORD = re.compile(r"[\w.+-]+")
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import|import[ \t]+([\w., \t]+))", re.MULTILINE)
_ABSOLUTE = re.compile(r"/[\w.+@-]+(?:/[\w.+@-]+)*")
_IN_HOME = re.compile(rf"(?:~|\$HOME|\$\{{HOME\}})({_ABSOLUTE.pattern})")
_MAX_LINKS = 8
_NOT_WORK = re.compile(r"/(?:tests|logs|opt|usr|root/\.|dev|tmp)\b")


@dataclass(frozen=True)
class File:
    """The file at a path. A link has the checksum and content of its target; directories and devices have neither."""

    mode: int
    """Mode of the path itself, including the file type."""
    sha256: str = ""
    content: bytes | None = None
    """The content, if it was requested and is not too large."""


@dataclass(frozen=True)
class ImageTree:
    """The paths of an image, and its search path for programs."""

    paths: frozenset[str]
    search_path: tuple[str, ...]
    """Directories that are searched for programs, in order."""
    home: str = "/root"

    @cached_property
    def by_directory(self) -> Mapping[str, frozenset[str]]:
        """Paths by their directory; the root is in itself."""
        found: dict[str, set[str]] = {}
        for path in self.paths:
            found.setdefault(dirname(path), set()).add(path)
        return {place: frozenset(paths) for place, paths in found.items()}

    @cached_property
    def environments(self) -> frozenset[str]:
        """Directories of all Python virtual environments."""
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
        """Headers and modules of languages other than Python, as programs name them: `Test/More.pm`."""
        return frozenset(name for path in self.paths if (name := source_name(path)))

    @cached_property
    def modules(self) -> frozenset[str]:
        """Names of the modules and packages in Python's standard directories."""
        found = (path for path in self.paths if _PYTHON_MODULES.search(dirname(path)))
        return frozenset(basename(path).partition(".")[0] for path in found)


@dataclass(frozen=True)
class Tests:
    """The texts of a task that show what its tests use."""

    script: str
    texts: tuple[str, ...] = ()
    """Texts of the other test files."""
    instruction: str = ""
    workdir: str = "/"
    files: frozenset[str] = frozenset()
    """Names of the test files."""
    home: str = "/root"
    """Home of the agent's user, which an instruction may call `~`."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Targets of the agent's links, which the tests follow."""

    def _followed(self, paths: Iterable[str]) -> frozenset[str]:
        """Return the paths together with the targets of links in them."""
        found = set(paths)
        for path in found.copy():
            for _ in range(_MAX_LINKS):
                above = map(str, (path, *PurePosixPath(path).parents))
                if (link := next((each for each in above if self.links.get(each)), None)) is None:
                    break
                path = normpath(self.links[link] + path[len(link) :])
                found.add(path)
        return frozenset(found)

    @cached_property
    def all_texts(self) -> tuple[str, ...]:
        return (self.script, *self.texts)

    @cached_property
    def words(self) -> frozenset[str]:
        """Words of the tests, which include the programs that they call."""
        return frozenset(_words(self.all_texts))

    @cached_property
    def asked_for(self) -> frozenset[str]:
        """Words and absolute paths of the instruction: they may name what the agent has to make."""
        at_home = (f"{self.home}{path}" for path in _IN_HOME.findall(self.instruction))
        paths = (path.rstrip(".") for path in (*_ABSOLUTE.findall(self.instruction), *at_home))
        return frozenset(_words([self.instruction])) | frozenset(paths)

    def asks_for(self, path: str) -> bool:
        """Whether the instruction names a path, a parent directory below the working directory, or its file name."""
        name = basename(path)
        is_file = "." in name or f"`{name}`" in self.instruction
        above = map(str, PurePosixPath(path).parents)
        folders = (each for each in above if not f"{self.workdir}/".startswith(f"{each}/"))
        return any(each in self.asked_for for each in (path, *folders)) or (is_file and name in self.asked_for)

    def names_file(self, path: str) -> bool:
        """Whether the instruction names a file, by its path or its name."""
        return path in self.asked_for or ("." in basename(path) and basename(path) in self.asked_for)

    def asks_to_make(self, program: str) -> bool:
        """Whether the instruction names a program without asking to install it from a package."""
        installs = rf"\binstall\w*\W+(?:\w+\W+){{0,8}}?{re.escape(program)}\b"
        return program in self.asked_for and re.search(installs, self.instruction, re.IGNORECASE) is None

    @cached_property
    def imports(self) -> frozenset[str]:
        """Names of the modules that the test files import."""
        names: set[str] = set()
        for text in self.texts:
            for module, modules in _IMPORT.findall(text):
                names |= {part.strip().partition(".")[0] for part in (module or modules).split(",")}
        return frozenset(name.partition(" ")[0] for name in names)

    @cached_property
    def provided(self) -> frozenset[str]:
        """Words of test.sh, which include the packages that it installs: `-w requests==2.31`."""
        return frozenset(re.split(r"[=<>\[]", word)[0].replace("-", "_") for word in _words([self.script]))

    @cached_property
    def named_paths(self) -> frozenset[str]:
        """Absolute paths in the texts of the tests."""
        return frozenset(found.rstrip("/.") for text in self.all_texts for found in _ABSOLUTE.findall(text))

    def asks_server(self, name: str) -> bool:
        """Whether the tests may contact a server of this name; a part of a path does not count."""
        host = re.compile(rf"(?:(?<![\w./-])|(?<=//)){re.escape(name)}(?![\w-]|\.\w|/)|//{re.escape(name)}\b")
        return any(map(host.search, self.all_texts))

    @cached_property
    def entered(self) -> frozenset[str]:
        """Directories in which test.sh runs: the working directory and those that it enters."""
        return self._followed(
            [self.workdir, *(normpath(join(self.workdir, each)) for each in _ENTERED.findall(self.script))]
        )

    @cached_property
    def import_directories(self) -> frozenset[str]:
        """Directories from which the tests may import: where test.sh runs, those that they name, and the root."""
        return self._followed(self.named_paths) | self.entered | {"/"}

    @cached_property
    def _pytest_calls(self) -> list[list[str]]:
        """Paths in the arguments of each call of pytest."""
        calls = _PYTEST_CALL.findall(script_without_installs(self.script))
        words = [[word.strip("\"'").partition("::")[0] for word in call.split()] for call in calls]
        return [[w for w in each if not w.startswith("-") and ("/" in w or w.endswith(".py"))] for each in words]

    @cached_property
    def pytest_roots(self) -> frozenset[str]:
        """Paths of the work that test.sh passes to pytest, or the directories in which it runs pytest."""
        found = {
            normpath(join(at, path)) for call in self._pytest_calls for path in call or ["."] for at in self.entered
        }
        return self._followed(path for path in found if path == self.workdir or not _NOT_WORK.match(path))

    @cached_property
    def pytest_directories(self) -> frozenset[str]:
        """Directories of the work whose settings pytest reads: its roots, where it is run, and their parents."""
        is_elsewhere = any(not any(path.startswith("/tests") for path in call) for call in self._pytest_calls)
        found = self.pytest_roots | (self.entered if is_elsewhere else frozenset())
        return found | {str(above) for path in found for above in PurePosixPath(path).parents}


def source_name(path: str) -> str:
    """Return the name of a header or non-Python module as programs use it; empty for other files."""
    found = _SOURCE.fullmatch(path)
    return found[1] if found else ""


def script_without_installs(script: str) -> str:
    """Return the lines of test.sh that may call pytest, without those that install it."""
    lines = script.replace("\\\n", " ").split("\n")
    return "\n".join(line for line in lines if not re.search(r"\binstall\b|^\s*#|-w pytest\s*\\?$", line))


def names(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


def _words(texts: Iterable[str]) -> Iterable[str]:
    for text in texts:
        for word in _WORD.findall(text):
            yield word
            yield word.strip(".-+")


@dataclass(frozen=True)
class OracleSystem:
    """Facts of a calibration that a verifier needs while it runs."""

    files: frozenset[tuple[str, str]] = frozenset()
    """System paths that the oracle's passes changed, with the start of their checksum; agents may add the new ones."""
    is_own: bool = False
    """Whether the container is the oracle's own: all its additions are allowed."""
    control: str = ""
    """Kind of control tests that the oracle's work is known to fail; empty for none."""
    needs_servers: bool | None = None
    """Whether the oracle's work passes in a fresh container only if its servers are reachable; None if unknown."""
    passes_intact: bool = False
    """Whether the oracle's work is known to pass sealed tests with the right values."""
    needs_processes: bool | None = None
    """Whether the oracle's work passes only while the processes that it left run; None if unknown."""
    of_control: Mapping[str, bool] = field(default_factory=dict)
    """Whether the oracle's work passes each control test, without tests whose result varied."""
    fails_swapped: bool = False
    """Whether the oracle's work is known to fail tests in which expected words are swapped."""


NO_ORACLE = OracleSystem()


@dataclass(frozen=True)
class ContainerFacts:
    """Facts about one container, from which the rules derive signs."""

    changes: Mapping[str, ChangeKind]
    """Paths that differ from the image."""
    image: ImageTree
    tests: Tests
    now: Mapping[str, File] = field(default_factory=dict)
    """Files in the container at the requested paths."""
    then: Mapping[str, File] = field(default_factory=dict)
    """Files in the image at the requested paths."""
    given: BackendFacts = field(default_factory=BackendFacts)
    """Name servers, hosts and volumes that come from outside of the container, and when it was made."""
    changed_by_tests: frozenset[str] = frozenset()
    """Paths written while the tests ran: test.sh may install packages."""
    oracle: OracleSystem = NO_ORACLE
    left_out: frozenset[str] = frozenset()
    """Links that are not copied because of where they lead."""
    has_servers: bool = False
    """Whether a server may run on the container's network, now or soon."""

    @cached_property
    def homes(self) -> frozenset[str]:
        """Prefixes whose `lib` contains the modules of a Python that is on the search path or named by the tests."""
        named = {dirname(dirname(path)) for path in self.tests.named_paths if "/bin/" in path}
        return frozenset({"/usr", f"{self.image.home}/.local", *map(dirname, self.image.search_path), *named} - {"/"})

    @cached_property
    def interpreters(self) -> tuple[str, ...]:
        """Directories of the image's interpreters, such as /opt/venv/, without parents of the working directory."""
        homes = self.image.environments.union(map(dirname, self.image.search_path)) - {"/"}
        return tuple(f"{home}/" for home in homes if not f"{self.tests.workdir}/".startswith(f"{home}/"))

    @cached_property
    def pth_targets(self) -> frozenset[str]:
        """Directories and archives that changed .pth files add to Python's module search path."""
        return frozenset(
            normpath(join(dirname(path), line.strip()))
            for path in self.changes
            if path.endswith(".pth")
            for line in (self.content(path) or "").splitlines()
            if line.strip() and not re.match(r"\s*(?:#|import\s)", line)
        )

    def differs(self, path: str) -> bool:
        """Whether a changed path differs from the image in content or type; times and link targets do not count."""
        now, then = self.now.get(path), self.then.get(path)
        if now is None or then is None:
            return True
        return now.sha256 != then.sha256 or (not now.sha256 and now.mode >> 12 != then.mode >> 12)

    def is_link(self, path: str) -> bool:
        """Whether a changed, requested path is a link."""
        return path in self.changes and path in self.now and self.now[path].mode >> 12 == 0o12

    def is_module(self, path: str) -> bool:
        """Whether Python may import a changed path by its name: a file, a package, or a link to one."""
        if path.endswith((".py", ".pyc", ".so")) or ("." not in basename(path) and self.is_link(path)):
            return True
        return f"{path}/__init__.py" in self.changes or f"{path}/__init__.pyc" in self.changes

    def content(self, path: str) -> str | None:
        """Return the text of a file in the container; None if it is missing or too large."""
        found = self.now.get(path)
        return None if found is None or found.content is None else found.content.decode("utf-8", "replace")

    def content_then(self, path: str) -> str:
        """Return the text of a file in the image; empty if it is missing or too large."""
        found = self.then.get(path)
        return "" if found is None or found.content is None else found.content.decode("utf-8", "replace")
