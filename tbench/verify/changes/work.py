"""The agent's work: what of its changes is brought into a fresh container of the image."""

from __future__ import annotations

import re
from collections.abc import Collection
from posixpath import dirname

from tbench.verify.changes.facts import Seen, Sign
from tbench.verify.changes.system import hides, is_as_oracle, is_system, may_come

_NEVER = re.compile(
    r"/(?:proc|sys|dev|run|tests|logs|solution|boot|opt/tbench|\.tbench-[^/]*)(?:/.*)?|/\.dockerenv|.*/__pycache__(?:/.*)?"
)
_LONGEST, _DEEPEST = 3800, 256
"""Characters and parts of a path."""
_HOME = re.compile(r"(?P<home>/root|/home/[^/]+)/\.(?P<entry>[^/]+)(?P<rest>/.*)?")
_SETTINGS = frozenset({"config", "ssh", "pip", "local", "cache", "cargo", "npm"})
"""Directories with a dot in a home that hold settings of programs."""
_SETTING = re.compile(r"(?:rc|init|_?profile|_?config|_aliases|_logout|\..*)?$")
"""What the name of a file of settings has besides the name of the program that reads it."""
_NODE = re.compile(r"(?P<above>.*?)/node_modules/.*")
_DATA = re.compile(
    r".*\.(?:txt|md|rst|log|out|json|jsonl|ya?ml|toml|csv|tsv|xml|html?|css|svg|png|jpe?g|gif|pdf|npy|npz|parquet|db|sqlite3?|pem|key|crt|gz|zip|tar)",
    re.IGNORECASE,
)
"""Names of files that nothing runs."""
BY_CONTENT = frozenset({"module-patched", "mentions-verifier"})
"""Kinds of signs about the text of a file, wherever it lies."""
STAYS_BEHIND = frozenset({"unread", "left-out"})
"""Kinds of signs about what is brought nowhere, or not as a whole."""
ALONG = frozenset({"hosts", "option-name"})
"""Kinds of signs about what a fresh container has, too: names of servers, and files that are the agent's work."""
_BROUGHT = STAYS_BEHIND | ALONG | {"git-hook-added"}
"""Kinds of signs whose paths are the agent's work all the same."""


Work = tuple[list[str], list[str]]
"""Paths to bring, and paths to remove."""


def comes_along(sign: Sign, seen: Seen) -> bool:
    """Whether a sign is about something that a fresh container has, too."""
    if sign.kind in ALONG or seen.tests.names_file(sign.path):
        return True
    return sign.kind in BY_CONTENT and seen.tests.asks_for(sign.path)


def work_of(seen: Seen, signs: Collection[Sign]) -> Work:
    """Paths to bring and paths to remove: all that no sign speaks against, where an agent works, and what it added to
    the system.

    What the instruction asks for is brought whatever its text says.
    """
    speaking = (sign for sign in signs if sign.kind not in _BROUGHT and not comes_along(sign, seen))
    against = {sign.path for sign in speaking if not is_as_oracle(seen, sign.path)}
    # Of what is a hook, all that lies below it stays behind.
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


def has_code(seen: Seen, paths: Collection[str]) -> bool:
    """Whether some of the paths may be run or read as code: all but directories, and files with the names of data."""
    above = {dirname(path) for path in paths} | seen.image.by_directory.keys()
    files = (
        path for path in paths if path not in above and not (path in seen.now and seen.now[path].mode >> 12 == 0o04)
    )
    return not all(map(_DATA.fullmatch, files))


def is_too_deep(path: str) -> bool:
    """Whether a path is longer or deeper than those that programs of a container can be asked about in time."""
    return len(path) > _LONGEST or path.count("/") > _DEEPEST


def without_system(seen: Seen, work: Work) -> Work:
    """The work without what was added to the system, but for what the instruction names."""

    def is_own(path: str) -> bool:
        return path in seen.tests.asked_for or not is_system(seen, path)

    return list(filter(is_own, work[0])), list(filter(is_own, work[1]))


def _is_work(seen: Seen, path: str, change: str) -> bool:
    if _NEVER.fullmatch(path) or is_too_deep(path):
        return False
    if path in seen.tests.asked_for:
        return True
    if is_system(seen, path):
        return may_come(seen, path, change)
    return is_place_of_work(seen, path) and not (dirname(path) in seen.image.search_path and hides(seen, path))


def is_place_of_work(seen: Seen, path: str) -> bool:
    """Whether an agent works at a path: not in the system, a home's settings, or packages of the image's."""
    if _NEVER.fullmatch(path) or is_system(seen, path):
        return False
    if (found := _HOME.fullmatch(path)) and not path.startswith(f"{seen.tests.workdir}/"):
        return False
    if found and seen.tests.workdir == found["home"] and (found["entry"] in _SETTINGS or not found["rest"]):
        owner = _SETTING.sub("", found["entry"])
        return found["entry"] not in _SETTINGS and owner != "" and owner not in seen.image.tools
    if found := _NODE.fullmatch(path):
        return path not in seen.image.paths and found["above"] != ""
    return True
