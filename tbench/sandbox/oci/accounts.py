"""Finds a container's users by name: the container's files are read from outside."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tbench.errors import Stage, TrialError

_MAX_BYTES = 1 << 20


class User(NamedTuple):
    """A user with numeric ids."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = "/"


def find_user(layers: Sequence[Path], text: str) -> User:
    """Return the user for a text such as `root`, `1000`, or `app:staff`. Raises TrialError.

    `layers` are directories with the container's files, the topmost first.
    """
    name, _, group = (text or "0").partition(":")
    known = _rows(layers, "passwd", 7)
    row = next((row for row in known if name in (row[0], row[2])), None)
    if row is None and not name.isdigit():
        raise _unknown("user", name)
    uid, gid, home = (int(row[2]), int(row[3]), row[5]) if row else (int(name), 0, "/")
    groups = _rows(layers, "group", 4)
    if group:
        found = next((int(each[2]) for each in groups if group in (each[0], each[2])), None)
        if found is None and not group.isdigit():
            raise _unknown("group", group)
        return User(uid, found if found is not None else int(group), (), home)
    more = (int(each[2]) for each in groups if row and row[0] in each[3].split(","))
    return User(uid, gid, tuple(more), home)


def _unknown(kind: str, name: str) -> TrialError:
    return TrialError(
        "task_invalid", f"unable to find {kind} {name}: the image has no {kind} {name!r}", stage=Stage.SANDBOX
    )


def _rows(layers: Sequence[Path], name: str, length: int) -> list[list[str]]:
    """Return the rows of a file of /etc that have the right form."""
    rows = (line.split(":") for line in _read(layers, name).splitlines())
    return [row for row in rows if len(row) == length and row[2].isdigit() and (length == 4 or row[3].isdigit())]


def _read(layers: Sequence[Path], name: str) -> str:
    """Return a file of /etc as text; empty if it is missing. No link is followed, since it could lead out."""
    for layer in layers:
        try:
            etc = os.open(layer / "etc", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=etc)
            finally:
                os.close(etc)
            with os.fdopen(file, "rb") as stream:
                return stream.read(_MAX_BYTES).decode("utf-8", "replace")
        except FileNotFoundError:
            continue
        except OSError:
            return ""
    return ""
