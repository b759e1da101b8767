"""Base of the keystroke protocols: one user message, keys with durations, completion claimed twice."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from harness.errors import FormatError
from harness.model_text import without_lone_surrogates
from harness.protocols.base import Action, Keys, Parsed, Response, View
from harness.protocols.reply_text import cut_middle, key_name, render_view, warning_sentences
from harness.protocols.templates import PromptedProtocol
from harness.trajectory import Message, Reply, ToolCall

DEFAULT_DURATION_SEC = 1.0
LONGEST_DURATION_SEC = 60.0

REQUIRED = ("analysis", "plan", "commands")
KNOWN = (*REQUIRED, "task_complete")


class KeystrokeProtocol(PromptedProtocol):
    """Base of protocols that start with one user message, followed by replies and terminal text in turn."""

    types_commands = False
    samples = {  # noqa: RUF012 -- never changed
        "task": {"instruction": "Do it.", "screen": "$ "},
        "observation": {"heading": "New terminal output:", "output": "$ ls\nfile", "warnings": ["Sample."]},
        "confirmation": {"observation": "New terminal output:\n$ ls"},
        "format_error": {"error": "No commands.", "observation": "Current terminal screen:\n$ "},
    }

    @abstractmethod
    def _read(self, content: str, warnings: list[str]) -> tuple[tuple[Keys, ...], bool]:
        """Return the reply's keys, and whether it claims completion. Raises FormatError."""

    @abstractmethod
    def _write(self, analysis: str, plan: str, typed: Sequence[tuple[str, float]], complete: bool) -> str:
        """Return a reply that types these texts, each with its duration in seconds."""

    def first_messages(self, instruction: str, screen: str) -> list[Message]:
        """Return one user message."""
        text = self._prompts.render("task", instruction=instruction, screen=cut_middle(screen, self._limit))
        return [Message(role="user", content=text)]

    def parse(self, content: str, tool_calls: Sequence[ToolCall] = ()) -> Parsed:
        """Parse the reply into keys. Raises FormatError, whose message includes the warnings."""
        warnings: list[str] = []
        try:
            actions, complete = self._read(content, warnings)
        except FormatError as error:
            message = _with_warnings(str(error), warnings)
            raise FormatError(error.kind, message, tuple(warnings)) from error.__cause__
        return Parsed(actions=actions, complete=complete, warnings=tuple(warnings))

    def write(self, analysis: str, plan: str, actions: Sequence[Action], *, complete: bool = False) -> Reply:
        """Return a reply that types the keys of `actions`, and may claim completion."""
        typed = [(each.key or each.keystrokes, each.duration_sec) for each in actions if isinstance(each, Keys)]
        return Reply(content=self._write(analysis, plan, typed, complete))

    def respond(self, parsed: Parsed, view: View, *, claimed: bool) -> Response:
        """Return the terminal's text, or the end: completion has to be claimed twice in a row."""
        observation = self._observe(view, warning_sentences(parsed.warnings + view.notes))
        if not parsed.complete:
            return Response(observation)
        if claimed:
            return Response(observation, submitted=True)
        return Response(self._prompts.render("confirmation", observation=observation), claimed=True)

    def complain(self, error_message: str, view: View | None) -> str:
        """Return the error, and the request to answer again in the format."""
        observation = self._observe(view, []) if view is not None else ""
        return self._prompts.render("format_error", error=error_message, observation=observation)

    def _observe(self, view: View, warnings: list[str]) -> str:
        heading, output = render_view(view, self._limit)
        return self._prompts.render("observation", heading=heading, output=output, warnings=warnings)


def as_keys(text: str, duration_sec: float, where: str, *, is_last: bool, warnings: list[str]) -> Keys:
    """Return `text` as keys to type, or as one key press if the whole string is a key name."""
    typeable = without_lone_surrogates(text)
    if typeable != text:
        warnings.append(f"lone_surrogate: {where}Half of a surrogate pair was replaced by U+FFFD.")
    key, warning = key_name(typeable), None
    if typeable and key is None and not is_last and not typeable.endswith("\n"):
        warning = f"no_newline: {where}Without a newline at its end the next command joins its line."
        warnings.append(warning)
    return Keys(keystrokes=typeable, duration_sec=duration_sec, key=key, shell_warning=warning)


def read_duration(fields: Mapping[str, object], where: str, warnings: list[str]) -> float:
    """Return the field `duration` as a permitted duration; the default if it is missing or not a number of seconds."""
    if "duration" not in fields:
        warnings.append(f"missing_duration: {where}No duration; {DEFAULT_DURATION_SEC} seconds were used.")
        return DEFAULT_DURATION_SEC
    value = fields["duration"]
    if not isinstance(value, float) or not math.isfinite(value) or value < 0:
        warnings.append(f"invalid_duration: {where}Not a number of seconds; {DEFAULT_DURATION_SEC} was used.")
        return DEFAULT_DURATION_SEC
    if value > LONGEST_DURATION_SEC:
        warnings.append(f"long_duration: {where}The duration was cut to {LONGEST_DURATION_SEC:g} seconds.")
    return min(value, LONGEST_DURATION_SEC)


def wrong_order(names: Iterable[str]) -> list[str]:
    """Return the warning if required fields are in the wrong order."""
    order = [name for name in dict.fromkeys(names) if name in REQUIRED]
    if order == [name for name in REQUIRED if name in order]:
        return []
    return [f"field_order: The fields came as {', '.join(order)}; use {', '.join(REQUIRED)}."]


def _with_warnings(error: str, warnings: list[str]) -> str:
    lines = [f"- {sentence}" for sentence in warning_sentences(tuple(warnings))]
    return without_lone_surrogates("\n".join([error, "Warnings:", *lines] if lines else [error]))
