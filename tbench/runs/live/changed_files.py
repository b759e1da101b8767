"""Lists the files that have changed in a debugged trial's container since the last check."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from posixpath import dirname

from tbench.control.wire import ChangeKind
from tbench.errors import TrialError
from tbench.sandbox.backend import BUSYBOX, Sandbox
from tbench.verify.changes.facts import WalkedFiles

Changes = Mapping[str, ChangeKind]
"""Kind of change by path, directories included."""
_LOOK_SEC = 10.0
_MAX_BYTES = 32 << 20
"""Largest size of a list of paths: about 500,000 paths."""
_TIME = re.compile(rb"(\d+) \S+ [\d:]+(\.\d+)? \S+\Z")
_LOOK = f"""{BUSYBOX} stat -c '%Z %z' /proc/$$ || exit
set -- /
for path in {{roots}}; do
    real=$({BUSYBOX} readlink -f "$path") && [ -e "$real" ] || continue
    [ "$({BUSYBOX} stat -c %d "$real")" = "$({BUSYBOX} stat -c %d /)" ] || set -- "$@" "$real"
done
/opt/tbench/bin/changed -a {{since}} inf 0 "$@" | {BUSYBOX} tr '\\0\\n' '\\n\\1' | {{only}} |
    {BUSYBOX} head -c {_MAX_BYTES}
"""
"""Prints the time, then all paths of the root's file system and of `roots`, one per line. The time is the
container's own, so no clocks are compared. Other file systems, such as /proc, are left out."""
_IN_CHANGED = (
    f'{BUSYBOX} awk \'{{ path = substr($0, 2); above = path; sub("/[^/]*$", "", above)'
    ' } !/^0/ { changed[path == "/" ? "" : path]; print; next } above in changed\''
)
"""Leaves out unchanged paths in unchanged directories."""


class ChangedFiles:
    """Remembers the paths of a container, and returns the changes between checks; it reads no contents and writes
    nothing.

    After a check that takes too long or finds too many paths, there are no more checks; `problem` has the reason.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.problem = ""
        """Why changes are unknown; empty while they are known."""
        self._sandbox = sandbox
        self._known: dict[str, set[str]] = {}
        """Paths by directory."""
        self._since: float = math.inf
        self._roots: set[str] = set()
        """Paths that may be on other file systems."""

    def watch(self, path: str) -> None:
        """Include a path that may be on another file system."""
        if path not in self._roots:
            self._roots.add(path)
            self._since = math.inf

    async def resolve(self, path: str) -> str:
        """Return where the links of a path lead; the path itself if nothing is there. Raises TrialError."""
        script = f"{BUSYBOX} readlink -f {shlex.quote(path)}"
        ended = await self._sandbox.shell(script, timeout_sec=_LOOK_SEC, user="root")
        return ended.output.decode("utf-8", "surrogateescape").removesuffix("\n") or path

    async def look(self) -> Changes:
        """Return the changes since the last check; none at the first one."""
        if self.problem:
            return {}
        try:
            return await self._look()
        except TrialError as error:
            self.problem = f"the files of its container cannot be listed: {error}"
        return {}

    async def _look(self) -> Changes:
        is_first = self._since == math.inf
        roots = " ".join(map(shlex.quote, sorted(self._roots)))
        only = f"{BUSYBOX} cat" if is_first else _IN_CHANGED
        script = _LOOK.format(roots=roots, since="inf" if is_first else repr(self._since), only=only)
        ended = await self._sandbox.shell(script, timeout_sec=_LOOK_SEC, user="root")
        head, _, listed = ended.output.partition(b"\n")
        time = _TIME.match(head)
        if ended.timed_out or ended.was_cut or time is None or len(listed) >= _MAX_BYTES:
            self.problem = f"its container has too many files to be listed within {_LOOK_SEC:.0f} s"
            return {}
        self._since = int(time[1]) + float(time[2] or 0)
        walked = WalkedFiles.read(listed.replace(b"\n", b"\0"))
        changes = {} if is_first else walked.beyond(self._known)
        self._note(walked.paths, walked.paths if is_first else walked.changed, changes)
        return changes

    def _note(self, paths: Iterable[str], listed: Iterable[str], changes: Changes) -> None:
        """Remember the paths in the listed directories, and forget paths below removed ones."""
        gone = tuple(f"{path}/" for path, kind in changes.items() if kind == "removed" and path in self._known)
        if gone:
            self._known = {place: paths for place, paths in self._known.items() if not f"{place}/".startswith(gone)}
        for place in listed:
            self._known.pop(place, None)
        for path in paths:
            self._known.setdefault(dirname(path), set()).add(path)

    def is_directory(self, path: str) -> bool:
        """Whether the path is known to be a directory that has had entries."""
        return path in self._known
