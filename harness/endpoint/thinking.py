"""Decides how earlier reasoning goes back to one server, and learns it from the server's refusals."""

from __future__ import annotations

import re

from harness.errors import RequestRefused
from harness.model import Rendering
from harness.rendering import Sent

_FIELD = re.compile(r"\b(reasoning(?:_content|_details)?|thinking(?:_content|_blocks)?)\b(?!\.\w|[ _]?budget)")
"""A field of a message; `thinking.type` and the like are of the request."""
_FILL = re.compile(r"(?:must|may|can|should)(?: not|not) be (?:empty|null|blank|missing|omitted|none)", re.IGNORECASE)
_UNWANTED = re.compile(
    r"\bnot (?:be )?(?:allowed|permitted|supported|accepted|expected|recogni[sz]ed|valid|included|passed|present|sent)"
    r"|(?:must|should|can)(?: ?not|n't)\b|does(?: not|n't) (?:support|accept|allow|take)|unsupported|unexpected|unknown"
    r"|unrecogni[sz]ed|forbidden|disallowed|\bextra\b|\bremove\b|additional propert|no such|\bonly\b",
    re.IGNORECASE,
)
_WANTED = re.compile(
    r"missing|require|must\b|pass(?:ed)? back|\bexpect|\bneed|provide|lack|absent|not found|include|without",
    re.IGNORECASE,
)


class ReasoningPolicy:
    """How the reasoning of earlier replies goes back to one server, for all conversations with it.

    It goes under the name in which it came, and the chat template decides what becomes of it, until the server refuses
    a history with it, or one that lacks it.
    """

    def __init__(self, rendering: Rendering) -> None:
        self._is_chosen = rendering.send_reasoning == "on"
        self._may_send = rendering.sends_reasoning
        self.sent = Sent() if self._may_send else None

    def came_as(self, field: str | None) -> None:
        """Note the name under which reasoning came."""
        if field is not None and self.sent is not None and not self.sent.always:
            self.sent = Sent(field)

    def learn(self, refused: RequestRefused, asked: Sent | None) -> str | None:
        """What is done from now on about a refusal of a history that went as `asked`, in words.

        None where the refusal is about something else. Raises the refusal, with advice, where the user has chosen.
        """
        words = str(refused).partition(": HTTP ")[2]
        found = _FIELD.search(words)
        if found is None or not 400 <= refused.status < 500:
            return None
        unwanted = _UNWANTED.search(words) and not _FILL.search(words)
        if not unwanted and (_FILL.search(words) or _WANTED.search(words)):
            if asked is not None and asked.always:
                return None
            if not self._may_send:
                raise _advised(refused, "this server wants earlier reasoning back: --send-reasoning and no stripping")
            named = found[1] if found[1] == "reasoning_content" else (asked or Sent()).field
            self.sent = Sent(named, always=True)
            return f"wants the reasoning of earlier replies back; it is sent from now on, as {named}"
        if asked is None:
            return None
        if self._is_chosen:
            raise _advised(refused, "this server takes no earlier reasoning: leave out --send-reasoning")
        self.sent = None
        return "refuses the reasoning of earlier replies; it is not sent from now on"


def _advised(refused: RequestRefused, advice: str) -> RequestRefused:
    return RequestRefused(f"{refused} ({advice})", refused.status)
