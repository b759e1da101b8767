"""The protocol interface between the agent loop and the models' reply formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

from harness.model_text import TokenGate
from harness.trajectory import Message, Reply, ToolCall


@dataclass(frozen=True)
class Keys:
    """Keystrokes for the terminal, with the protocol's own key syntax already resolved.

    `keystrokes` is literal text (a newline is Enter); if `key` is set, that tmux key is pressed instead. Empty
    keystrokes mean: wait the whole duration.
    """

    keystrokes: str
    duration_sec: float
    key: str | None = None
    shell_warning: str | None = None
    """The reply's warning, if any, that does not apply if a full-screen program receives the keys."""


@dataclass(frozen=True)
class Command:
    """A shell command that runs to its end (or time limit) and is answered with its exact output."""

    command: str


Action = Keys | Command


@dataclass(frozen=True)
class Parsed:
    """A parsed reply."""

    actions: tuple[Action, ...] = ()
    complete: bool = False
    """Whether the reply declares the task complete."""
    warnings: tuple[str, ...] = ()
    """One sentence per repair or oddity, `kind: what happened` (kind is counted)."""
    tool_call: ToolCall | None = None
    """The tool call with the actions: it stays in the history, and the response answers it."""


@dataclass(frozen=True)
class ScreenView:
    """The terminal's content after the actions of a keystroke protocol."""

    screen: str
    new_output: str | None
    """Text since the last observation, from the first changed line; None if unknown (cleared, full screen)."""
    elided_lines: int = 0
    """Number of lines left out of the middle of `new_output`."""
    notes: tuple[str, ...] = ()
    """Incidents of the terminal, `kind: sentence` each."""


@dataclass(frozen=True)
class Gap:
    """Head and tail of a text that is too long to be kept or shown, and the size of the missing middle."""

    head: str
    tail: str
    elided_bytes: int
    """Missing bytes of UTF-8."""
    elided_chars: int

    @property
    def text(self) -> str:
        """Head and tail around a line with the number of missing bytes."""
        return f"{self.head}\n[... {self.elided_bytes} bytes left out ...]\n{self.tail}"


@dataclass(frozen=True)
class CommandResult:
    """A finished command for a bash protocol."""

    output: str
    """The command's exact output as plain text; the text of `gap` if it was too long to be kept."""
    exit_code: int | None
    timed_out: bool = False
    gap: Gap | None = None
    """Kept parts of a long output."""
    background: str = ""
    """Output of background processes since the previous command."""
    notes: tuple[str, ...] = ()
    """Incidents of the terminal or the shell, `kind: sentence` each."""

    @property
    def elided_bytes(self) -> int:
        """Number of bytes of plain text missing from `output`."""
        return self.gap.elided_bytes if self.gap else 0


View = ScreenView | CommandResult


@dataclass(frozen=True)
class Response:
    """The answer to a step's actions: the end (submitted), or `message` for the model."""

    message: str
    claimed: bool = False
    """Whether the reply claimed completion, which the next step has to confirm."""
    submitted: bool = False


@runtime_checkable
class GatedProtocol(Protocol):
    """A protocol that passes inserted values through the token gate; messages of other protocols pass it as a whole."""

    def with_gate(self, gate: TokenGate) -> Self:
        """Return the same protocol with a gate for all text that is inserted into its messages."""


class ActionProtocol(Protocol):
    """Converts a reply's text into actions, and the terminal's answer into the next user message.

    Implementations are stateless: the loop keeps `claimed`.
    """

    @property
    def name(self) -> str:
        """Name of the protocol on the command line."""

    @property
    def mark(self) -> str:
        """Text by which a prompt that asks for this format can be recognised, such as `<keystrokes`."""

    @property
    def types_commands(self) -> bool:
        """Whether actions are shell commands, not keys; then the terminal is set up as unattended (TerminalSpec)."""

    @property
    def prompt_hash(self) -> str:
        """SHA-256 of all templates in use, for the run's lock."""

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Functions offered with every request, in OpenAI's format; empty if replies are text."""

    def first_messages(self, instruction: str, screen: str) -> list[Message]:
        """Return the first messages of the conversation."""

    def parse(self, content: str, tool_calls: Sequence[ToolCall] = ()) -> Parsed:
        """Parse a complete reply, in linear time. Raises FormatError, and nothing else."""

    def write(self, analysis: str, plan: str, actions: Sequence[Action], *, complete: bool = False) -> Reply:
        """Return a reply that `parse` reads as `actions`, or as completion. For scripted models."""

    def respond(self, parsed: Parsed, view: View, *, claimed: bool) -> Response:
        """Return the next user message after the actions of `parsed`; `claimed` comes from the last response."""

    def complain(self, error_message: str, view: View | None) -> str:
        """Return the user message after a FormatError or a cut reply, of which nothing was executed."""
