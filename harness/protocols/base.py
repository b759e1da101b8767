"""The protocol interface: the seam between the agent loop and the formats that models speak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

from harness.text import TokenGate
from harness.trajectory import Message, ToolCall


@dataclass(frozen=True)
class Keys:
    """Keystrokes for the terminal, with the protocol's own key syntax already resolved.

    `keystrokes` is literal text (a newline is Enter); where `key` is set, it is one tmux key name instead.
    Empty keystrokes mean: wait the whole duration.
    """

    keystrokes: str
    duration_sec: float
    key: str | None = None
    shell_warning: str | None = None
    """The one of the reply's warnings, if any, that has no meaning where a full-screen program gets the keys."""


@dataclass(frozen=True)
class Command:
    """Shell text that is run to its end (or its time limit) and answered with its exact output."""

    command: str


Action = Keys | Command


@dataclass(frozen=True)
class Parsed:
    """What a protocol understood of a reply."""

    actions: tuple[Action, ...] = ()
    complete: bool = False
    """Whether the reply says that the task is complete."""
    warnings: tuple[str, ...] = ()
    """One sentence per repair or oddity, `kind: what happened` (kind is counted)."""
    tool_call: ToolCall | None = None
    """The call that the actions come from: it stays in the history, and the response answers it."""


@dataclass(frozen=True)
class ScreenView:
    """The terminal as a keystroke protocol sees it after its actions."""

    screen: str
    new_output: str | None
    """Text since the last observation, from the first line that has changed; None where it cannot be told (cleared,
    full screen)."""
    elided_lines: int = 0
    """Number of lines left out of the middle of `new_output`, which nobody would read in full."""
    notes: tuple[str, ...] = ()
    """What happened to the terminal, `kind: sentence` each."""


@dataclass(frozen=True)
class Gap:
    """A text that is too long to be kept or shown: its ends, and how much is missing between them."""

    head: str
    tail: str
    elided_bytes: int
    """Missing bytes of UTF-8."""
    elided_chars: int

    @property
    def text(self) -> str:
        """Head and tail around a line that says how many bytes are missing."""
        return f"{self.head}\n[... {self.elided_bytes} bytes left out ...]\n{self.tail}"


@dataclass(frozen=True)
class CommandResult:
    """A command's end as a bash protocol sees it."""

    output: str
    """Exactly what the command printed, as plain text; the text of `gap` where it was too long to be kept."""
    exit_code: int | None
    timed_out: bool = False
    gap: Gap | None = None
    """What was kept of a long output."""
    background: str = ""
    """What processes in the background printed since the command before."""
    notes: tuple[str, ...] = ()
    """What happened to the terminal or the shell, `kind: sentence` each."""

    @property
    def elided_bytes(self) -> int:
        """Number of bytes of plain text that are missing in `output`."""
        return self.gap.elided_bytes if self.gap else 0


View = ScreenView | CommandResult


@dataclass(frozen=True)
class Response:
    """What the loop does after a step's actions: end (submitted), or send `message` to the model."""

    message: str
    claimed: bool = False
    """Whether completion was claimed, which the next step has to confirm."""
    submitted: bool = False


@runtime_checkable
class Gated(Protocol):
    """A protocol that tells its prompts from what is put into them; of others' messages all of it passes the gate."""

    def through(self, gate: TokenGate) -> Self:
        """The same protocol with a gate that all text passes which is put into its messages."""


class ActionProtocol(Protocol):
    """How a reply's text becomes actions, and how what came back becomes the next user message.

    Implementations are stateless: `claimed` is carried by the loop.
    """

    @property
    def name(self) -> str:
        """The protocol's name on the command line."""

    @property
    def types_commands(self) -> bool:
        """Whether actions are shell text, not keys; the shell's history expansion is switched off for them."""

    @property
    def prompt_hash(self) -> str:
        """The sha256 over all templates in use, for the run's lock."""

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Functions offered with every request, in OpenAI's format; empty where replies are text."""

    def first_messages(self, instruction: str, screen: str) -> list[Message]:
        """The messages that open the conversation."""

    def parse(self, content: str, tool_calls: Sequence[ToolCall] = ()) -> Parsed:
        """Understand a complete reply, in linear time. Raises FormatError, and nothing else."""

    def respond(self, parsed: Parsed, view: View, *, claimed: bool) -> Response:
        """The next user message, once the actions of `parsed` have run; `claimed` is that of the last response."""

    def complain(self, error_message: str, view: View | None) -> str:
        """The user message after a FormatError (or a cut reply): nothing was executed."""
