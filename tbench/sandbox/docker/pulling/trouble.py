"""Why a pull failed, read from the engine's words: what passes by itself, and what somebody has to mend.

An engine has no codes for it: a registry's 429, 401 or 500 all arrive as 500, or within an answer that began with 200.
"""

from __future__ import annotations

import re
from typing import Literal

from tbench.errors import TbenchError
from tbench.sandbox.docker.pulling.name import ImageName

TroubleKind = Literal[
    "away", "silent", "slow", "passing", "rate-limited", "denied", "missing", "no-space", "unreadable"
]
"""`away`: nobody can be reached there; `silent`: no answer in time; `slow`: a pull that took its whole time;
`passing`: a cut connection, a 5xx; `missing`: it is not there; `unreadable`: an answer that no registry gives, and
whatever else no other pull would mend."""

_SIGNS: tuple[tuple[TroubleKind, str], ...] = (
    ("no-space", r"no space left on device|disk quota exceeded"),
    ("rate-limited", r"toomanyrequests|too many requests|HTTP 429|status: 429|rate limit"),
    ("missing", r"not found|manifest unknown|name unknown|unknown blob|repository does not exist|HTTP 404|status: 404"),
    (
        "denied",
        r"unauthorized|authentication required|no basic auth|denied|forbidden|HTTP 40[13]|status: 40[13]"
        r"|incorrect username or password",
    ),
    # An answer of 5xx, and not a number in some name.
    ("passing", r"status:? 5\d\d|HTTP 5\d\d|5\d\d (Internal|Bad Gateway|Service|Gateway)"),
    ("slow", r"^took longer than \d+ s$"),
    ("away", r"no such host|connection refused|no route to host|network is unreachable|server gave HTTP response"),
    ("silent", r"time-?out|timed out|deadline exceeded|did not answer|Temporary failure"),
    (
        "passing",
        r"\bEOF\b|connection reset|broken pipe|transport connection broken|connection closed|stream error"
        r"|INTERNAL_ERROR|server closed|use of closed network|IncompleteRead|download failed after attempts",
    ),
    ("away", r"dial tcp"),
)
_QUOTED_URL = re.compile(r'"https?://[^"]*"')


class PullFailed(TbenchError):
    """An image was not pulled; the message says which registry did what, and what to do."""

    def __init__(
        self, kind: TroubleKind, message: str, *, said: str = "", retry_after_sec: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.said = said or message
        """The engine's own words."""
        self.retry_after_sec = retry_after_sec
        """How long the registry asks to wait; None where it does not say."""


def kind_of(words: str, name: ImageName) -> TroubleKind:
    """What the engine's words about a pull come to."""
    said = _QUOTED_URL.sub("", words)
    for own in (name.text, name.wanted, name.repository, name.path):
        said = said.replace(own, "")  # an image may be called anything
    return next((kind for kind, sign in _SIGNS if re.search(sign, said, re.IGNORECASE)), "unreadable")
