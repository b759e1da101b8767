"""Hides secrets in what comes out of a sandbox, byte by byte: columns of a screen and sizes of an archive stay."""

from __future__ import annotations

import re
from collections.abc import Iterable

_BETWEEN = rb"(?:\r?\n(?:%(?:extended-)?output %\d+ (?:\d+ : )?)?)?"
"""What may stand in the midst of a secret: a line break, as of a screen that is too narrow, and a new piece of what
tmux passes on."""


class Masks:
    """The secrets that are hidden; each byte of one becomes a star."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # The longest first: one may hold another.
        found = sorted({each.encode() for each in secrets if each}, key=lambda each: -len(each))
        self.secrets = tuple(found)
        # Of one that a line break cuts, half is whole: to look for these takes a hundredth of the time.
        halves = {half for each in found for half in (each[: len(each) // 2], each[len(each) // 2 :])}
        self._halves = [half for half in halves if not any(other in half for other in halves - {half})]
        one = (_BETWEEN.join(re.escape(each[at : at + 1]) for at in range(len(each))) for each in found)
        self._pattern = re.compile(b"|".join(one)) if found else None

    def masked(self, data: bytes) -> bytes:
        """`data` with all secrets hidden."""
        if self._pattern is None or not any(half in data for half in self._halves):
            return data
        return self._pattern.sub(_stars, data)

    def masked_text(self, text: str) -> str:
        """The same of a text."""
        if self._pattern is None:
            return text
        return self.masked(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def stream(self) -> MaskedStream:
        """What hides them in output that comes in pieces."""
        return MaskedStream(self)


class MaskedStream:
    """Hides secrets in one stream; what may be the beginning of one is held back until more comes."""

    def __init__(self, masks: Masks) -> None:
        self._masks = masks
        self._held = b""

    def take(self, data: bytes) -> bytes:
        """The next piece that is to be told."""
        data = self._masks.masked(self._held + data)
        kept = max((_begun(data, secret) for secret in self._masks.secrets), default=0)
        self._held = data[len(data) - kept :]
        return data[: len(data) - kept]

    def rest(self) -> bytes:
        """What was held back, where nothing more comes."""
        held, self._held = self._held, b""
        return held


_BREAK = re.compile(_BETWEEN[: -len(b"?")])
_BEGUN_BREAK = re.compile(rb"\r?(?:\n(?:%[^\r\n]{0,40})?)?")
"""A break, or the beginning of one, at the end of what there is."""
_LONGEST_BREAK = 44
_FEWEST_BEFORE_A_BREAK = 4
"""Bytes of a secret before a break that are held back with it in any line: an answer of tmux may end in fewer."""


def _stars(found: re.Match[bytes]) -> bytes:
    if b"\n" not in found[0]:
        return b"*" * len(found[0])
    parts, at = [], 0
    for between in _BREAK.finditer(found[0]):
        parts += [b"*" * (between.start() - at), between[0]]
        at = between.end()
    return b"".join([*parts, b"*" * (len(found[0]) - at)])


def _begun(data: bytes, secret: bytes) -> int:
    """How many bytes at the end of `data` may be the beginning of a secret, all of which is not there yet."""
    at = max(0, len(data) - len(secret) * _LONGEST_BREAK)
    while (at := data.find(secret[:1], at)) >= 0:
        if _goes_on_to_the_end(data, at, secret):
            return len(data) - at
        at += 1
    return 0


def _goes_on_to_the_end(data: bytes, start: int, secret: bytes) -> bool:
    """Whether `data` from `start` on is the beginning of the secret, perhaps with breaks in its midst or behind it."""
    at = start
    for number in range(len(secret)):
        if at == len(data):
            return True
        if number and _BEGUN_BREAK.fullmatch(data, at):
            return number >= _FEWEST_BEFORE_A_BREAK or _is_output(data, start)
        if number and (between := _BREAK.match(data, at)) is not None:
            at = between.end()
        if data[at] != secret[number]:
            return False
        at += 1
    return False


def _is_output(data: bytes, at: int) -> bool:
    """Whether the line at `at` is known to be output, and none that tmux answers with, for which somebody waits."""
    begins_at = data.rfind(b"\n", 0, at) + 1
    is_output = data.startswith((b"%output ", b"%extended-output "), begins_at)
    return is_output or (begins_at > 0 and not data.startswith(b"%", begins_at))
