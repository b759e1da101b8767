"""What git's last words mean to whoever wanted a dataset: what is wrong, and what to do."""

from __future__ import annotations

import re
import signal

from tbench.text import one_line

_MIRROR = "or let a mirror stand for it (docs/datasets.md)"
_LOGIN = f"give git a credential helper or a key for it, {_MIRROR}"
_MEANINGS: tuple[tuple[str, str, str], ...] = (
    (
        r"No space left on device|Disk quota exceeded|File too large|died of signal 25",
        "the disk is full",
        "make room, then do it again",
    ),
    (
        r"could not read (Username|Password)|terminal prompts disabled|Authentication failed|Invalid username"
        r"|Permission denied \(|returned error: 40[13]|Host key verification failed",
        "asks who you are, or is not there for everybody",
        _LOGIN,
    ),
    (
        r"not our ref|unadvertised object|couldn't find remote ref|no such remote ref|bad object|unable to read tree",
        "does not have this commit (any more)",
        "check the commit, or name a mirror that has it",
    ),
    (
        r"[Rr]epository .*not found|does not appear to be a git repository|does not exist|returned error: 404"
        r"|No such file or directory|not a git repository|Project not found",
        "no repository is there",
        f"check the URL, {_MIRROR}",
    ),
    (
        r"pack-objects died|unable to read [0-9a-f]{40}|missing blob|bad pack header",
        "lacks some of its own files, as a partial copy does",
        "name a whole one, or mirror it with git clone --mirror",
    ),
    (r"dubious ownership", "belongs to another user, and git does not trust it", "see git help config, safe.directory"),
    (
        r"[Cc]ould not resolve|Failed to connect|[Cc]onnection (refused|timed out|reset)|Couldn't connect"
        r"|unreachable|unable to access|early EOF|RPC failed|hung up|Operation timed out|unable to connect"
        r"|transfer closed|timed out|name resolution",
        "cannot be reached",
        f"check the network, {_MIRROR}",
    ),
)
_ELSEWHERE = {what for _, what, _ in _MEANINGS} - {
    "no repository is there",
    "belongs to another user, and git does not trust it",
}
"""What is not the fault of a directory in which a killed git has left something."""
_MESSAGE = re.compile(r"^(?:fatal|error|ERROR|remote: error|ssh): *(.+)$", re.MULTILINE)


def meaning_of(output: str, code: int) -> str:
    """What is wrong and what to do, on one line, with git's own words."""
    if code == -signal.SIGXFSZ:
        return "the disk is full; make room, then do it again"
    said = _own_words(output) or f"git ended with {code}"
    for pattern, what, advice in _MEANINGS:
        if re.search(pattern, output):
            return f"{what} ({said}); {advice}"
    return f"git failed ({said})"


def is_elsewhere(output: str) -> bool:
    """Whether the trouble is with the server, the network or the disk, so that beginning anew is of no use."""
    found = next((what for pattern, what, _ in _MEANINGS if re.search(pattern, output)), None)
    return found in _ELSEWHERE


def refuses_filter(output: str) -> bool:
    """Whether the server may do without `--filter`: it cannot leave out files, and says so in its own way."""
    return re.search(r"expected 'packfile'|filter|not support|expected flush|protocol error", output) is not None


def _own_words(output: str) -> str:
    """Git's first complaint; the later ones follow from it."""
    found = _MESSAGE.search(output)
    return one_line(found[1] if found else output, 200)
