"""The agent's work: what of its changes is brought into a fresh container of the image."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from posixpath import basename, dirname

from tbench.verify.changes.facts import Seen
from tbench.verify.changes.signs import Sign

_NEVER = re.compile(r"/(?:proc|sys|dev|run|tests|logs|solution|boot|opt/tbench|\.tbench-[^/]*)(?:/.*)?|/\.dockerenv")
_SYSTEM = re.compile(r"/(?:usr|bin|sbin|lib\w*|etc|var/(?:lib|cache|run|log))(?:/.*)?")
_MAY_GROW = re.compile(r"/(?:etc|usr/local/(?:etc|share|src|games|include|s?bin)|usr/src|var/(?:lib|log)|usr/s?bin)/.*")
"""Parts of the system where something new, of which no rule knows that it decides anything, is work."""
_PACKAGES_OWN = re.compile(
    r"/var/lib/(?:dpkg|apt|pam|systemd|python|ucf)/.*|/etc/(?:alternatives|ssl|ca-certificates).*"
)
_ACCOUNTS = ("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow")
_IN_HOME = re.compile(r"(?:/root|/home/[^/]+)/\.[^/]+(?:/.*)?")
_OF_OTHERS = re.compile(r"/(?:site-packages|dist-packages|node_modules|\.git|\.venv)/|/\.[^/]*history$")
_PATCHED = frozenset(
    {"builtins", "sys", "os", "io", "pytest", "unittest", "operator", "math", "json", "re", "subprocess"}
)
"""Modules that a test may use without importing them itself."""
_FLAG = r"(?:\w+\.)+(?!_)\w+\s*=\s*(?:True|False|None)\s*(?:#.*)?$"
"""A flag that is set, such as torch.backends.cudnn.deterministic: no function of the tests' is another by it."""
_BY_CONTENT = frozenset({"module-patched", "mentions-verifier"})
"""Kinds of signs about the text of a file, wherever it lies."""
_CLEARED = frozenset(
    {"tool-asked-for", "tool-made", "git-hook-added", "accounts-changed", "pytest-config", "module-beside"}
)
"""Kinds of signs whose paths are the agent's work all the same."""


def mention_signs(seen: Seen) -> Iterator[Sign]:
    """Files of the agent's work that speak of the verifier: the tests may run them."""
    for path in seen.mentions:
        yield Sign("mentions-verifier", path, "speaks of the reward, or of what runs the tests")


def patch_signs(seen: Seen) -> Iterator[Sign]:
    """Modules of the agent's that the tests import, and that change other modules under the tests' eyes."""
    own = {basename(path).removesuffix(".py") for path in seen.changes if path.endswith(".py")}
    names = "|".join(map(re.escape, sorted((seen.tests.imports | _PATCHED) - own)))
    assigns = re.compile(
        rf"^\s*(?!{_FLAG})(?:(?:{names})(?:\.\w+)*\.(?!stdout\b|stderr\b|stdin\b|path\b|argv\b)\w+\s*=[^=]|setattr\(\s*(?:{names})\b)",
        re.MULTILINE,
    )
    for path in imported_work(seen):
        if assigns.search(seen.content(path) or ""):
            yield Sign("module-patched", path, "is imported by the tests, and changes another module")


def imported_work(seen: Seen) -> Iterator[str]:
    """Changed modules which the tests import by name from a directory of the agent's work."""
    for path, change in seen.changes.items():
        directory, name = dirname(path), basename(path)
        if change == "removed" or not name.endswith(".py"):
            continue
        package = basename(directory) if name == "__init__.py" else name.removesuffix(".py")
        place = dirname(directory) if name == "__init__.py" else directory
        if package in seen.tests.imports and place in seen.tests.import_directories:
            yield path


def may_mention(seen: Seen, path: str) -> bool:
    """Whether a changed path is looked through for words about the verifier: files of the agent's own."""
    return seen.changes[path] != "removed" and _is_place_of_work(seen, path) and not _OF_OTHERS.search(path)


def comes_along(sign: Sign, seen: Seen) -> bool:
    """Whether a sign is about what a fresh container has, too: names of servers, or the text of a deliverable."""
    return sign.kind == "hosts" or (sign.kind in _BY_CONTENT and seen.tests.asks_for(sign.path))


def work_of(seen: Seen, signs: Collection[Sign]) -> tuple[list[str], list[str]]:
    """Paths to bring and paths to remove: all that no sign speaks against, where an agent works.

    What the instruction asks for is brought whatever its text says.
    """
    against = {sign.path for sign in signs if sign.kind not in _CLEARED and not comes_along(sign, seen)}
    # Of what is a hook, all that lies below it stays behind.
    folders = tuple(f"{path}/" for path in against)
    paths: list[str] = []
    removed: list[str] = []
    for path, change in seen.changes.items():
        if (
            path in against
            or path in seen.made_by_tests
            or path.startswith(folders)
            or not _is_work(seen, path, change)
        ):
            continue
        (removed if change == "removed" else paths).append(path)
    return paths, removed


def _is_work(seen: Seen, path: str, change: str) -> bool:
    if _is_place_of_work(seen, path):
        return True
    if path in seen.tests.asked_for or path in _ACCOUNTS:
        return True
    if _NEVER.fullmatch(path) or _PACKAGES_OWN.fullmatch(path) or change != "added" or not _MAY_GROW.fullmatch(path):
        return False
    is_tool = dirname(path) in seen.image.search_path
    return not is_tool or (basename(path) not in seen.image.tools and not path.startswith("/usr/bin/"))


def _is_place_of_work(seen: Seen, path: str) -> bool:
    if _NEVER.fullmatch(path) or _SYSTEM.fullmatch(path) or path.endswith("/__pycache__") or "/__pycache__/" in path:
        return False
    if _IN_HOME.fullmatch(path) and not path.startswith(f"{seen.tests.workdir}/"):
        return False
    return not path.startswith(seen.interpreters)
