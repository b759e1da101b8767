"""The agent's work: the changes that are copied into a fresh container of the image."""

from __future__ import annotations

import re
from collections.abc import Collection
from posixpath import dirname

from tbench.verify.changes.facts import ContainerFacts, Sign
from tbench.verify.changes.system import is_system, matches_oracle, may_be_copied, may_shadow

_NEVER_COPIED = re.compile(
    r"/(?:proc|sys|dev|run|tests|logs(?!/artifacts/)|solution|boot|opt/tbench|\.tbench-[^/]*)(?:/.*)?"
    r"|/\.dockerenv|.*/__pycache__(?:/.*)?"
)
_MAX_LENGTH, _MAX_DEPTH = 3800, 256
"""Limits of a path: characters, and number of parts."""
_HOME = re.compile(r"(?P<home>/root|/home/[^/]+)/\.(?P<entry>[^/]+)(?P<rest>/.*)?")
_SETTINGS = frozenset({"config", "ssh", "pip", "local", "cache", "cargo", "npm"})
"""Hidden directories of a home that hold settings of programs, without the dot."""
_SETTING = re.compile(r"(?:rc|init|_?profile|_?config|_aliases|_logout|\..*)?$")
"""Suffix of a settings file's name, behind the name of the program that reads it."""
_NODE = re.compile(r"(?P<above>.*?)/node_modules/.*")
TEST_FILE = re.compile(r".*/(?:test_[^/]*|[^/]*_test)\.py")
KINDS_NOT_COPIED = frozenset({"unread", "left-out"})
"""Kinds of signs about paths that are not copied, or only in part."""
KINDS_ON_NETWORK = frozenset({"hosts"})
"""Kinds of signs that also count in a fresh container on the agent's network, where host names are the same."""

Work = tuple[list[str], list[str]]
"""Paths to copy, and paths to remove."""


def holds_in_fresh(sign: Sign, seen: ContainerFacts, *, is_apart: bool = False) -> bool:
    """Whether a sign also counts in a fresh container; `is_apart`: it is not on the agent's network."""
    return (sign.kind in KINDS_ON_NETWORK and not is_apart) or seen.tests.names_file(sign.path)


def work_of(seen: ContainerFacts, signs: Collection[Sign]) -> Work:
    """Return the paths to copy and to remove: changes without signs, in the work area or harmless to the system."""
    speaking = (sign for sign in signs if sign.kind not in KINDS_NOT_COPIED and not holds_in_fresh(sign, seen))
    against = {sign.path for sign in speaking if not matches_oracle(seen, sign.path)}
    # Everything below a path with a sign is left out, too.
    folders = tuple(f"{path}/" for path in against)
    left = against | seen.left_out
    paths: list[str] = []
    removed: list[str] = []
    for path, change in seen.changes.items():
        if path in left or path.startswith(folders):
            continue
        if _is_work(seen, path, change):
            (removed if change == "removed" else paths).append(path)
    return paths, removed


def is_too_deep(path: str) -> bool:
    """Whether a path is too long or too deeply nested to be inspected in reasonable time."""
    return len(path) > _MAX_LENGTH or path.count("/") > _MAX_DEPTH


def without_system(seen: ContainerFacts, work: Work) -> Work:
    """Return the work without changes to the system, except for paths that the instruction names."""

    def is_own(path: str) -> bool:
        return path in seen.tests.asked_for or not is_system(seen, path)

    return list(filter(is_own, work[0])), list(filter(is_own, work[1]))


def without_tests(seen: ContainerFacts, work: Work) -> Work:
    """Return the work without new files that tests may mistake for their own, and that the instruction does not name.

    Tests may mistake for their own: test files that pytest would collect, and paths outside of the working directory
    that the tests name.
    """
    roots = tuple(f"{root.rstrip('/')}/" for root in seen.tests.pytest_roots)
    inside = f"{seen.tests.workdir.rstrip('/')}/"

    def is_of_tests(path: str) -> bool:
        is_collected = path.startswith(roots) and TEST_FILE.fullmatch(path) is not None
        is_named = path in seen.tests.named_paths and not f"{path}/".startswith(inside)
        return (is_collected or is_named) and path not in seen.image.paths and not seen.tests.asks_for(path)

    left = {path for path in work[0] if is_of_tests(path)}
    folders = tuple(f"{path}/" for path in left)
    return [path for path in work[0] if path not in left and not path.startswith(folders)], work[1]


def _is_work(seen: ContainerFacts, path: str, change: str) -> bool:
    if _NEVER_COPIED.fullmatch(path) or is_too_deep(path):
        return False
    if path in seen.tests.asked_for:
        return True
    if is_system(seen, path):
        return may_be_copied(seen, path, change)
    return is_in_work_area(seen, path) and not (dirname(path) in seen.image.search_path and may_shadow(seen, path))


def is_in_work_area(seen: ContainerFacts, path: str) -> bool:
    """Whether a path is the agent's to work in: not the system, settings in a home, or packages of the image."""
    if _NEVER_COPIED.fullmatch(path) or is_system(seen, path):
        return False
    if (found := _HOME.fullmatch(path)) and not path.startswith(f"{seen.tests.workdir}/"):
        return False
    if found and seen.tests.workdir == found["home"] and (found["entry"] in _SETTINGS or not found["rest"]):
        owner = _SETTING.sub("", found["entry"])
        return found["entry"] not in _SETTINGS and owner != "" and owner not in seen.image.tools
    if found := _NODE.fullmatch(path):
        return path not in seen.image.paths and found["above"] != ""
    return True
