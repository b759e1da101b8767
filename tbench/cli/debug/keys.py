"""What each key does: most begin a command in words."""

from __future__ import annotations

from typing import NamedTuple

TYPING_ENDS = "Ctrl-]"


class Binding(NamedTuple):
    """A key and its command."""

    presses: tuple[str, ...]
    """Names of the key presses."""
    name: str
    """One word for it."""
    does: str
    """A line of help."""
    words: str = ""
    """The command in words, or its beginning where the answer to a question ends it."""
    asks: str = ""
    """The question, where there is one."""
    default: str = ""
    """What an empty answer means."""
    is_daily: bool = True
    """Whether it is among those that are always shown."""

    @property
    def shown(self) -> str:
        """The key as the help has it."""
        return self.presses[0] if self.presses[0] != "tab" else "Tab"


KEYS = (
    Binding(("s", " "), "step", "do what waits, and stop at the next reply (also the space bar)", "step"),
    Binding(("n",), "to step", "go on to the reply of a step", "run to", "go on to the reply of step"),
    Binding(("u",), "until", "go on until a text is on the screen", "run until", "go on until the screen shows"),
    Binding(("g",), "go on", "go on to the end", "run", is_daily=False),
    Binding(("e",), "edit", "edit the reply that waits, in $EDITOR where it is set", "edit", "reply"),
    Binding(("d",), "drop", "do nothing of it; the model reads why", "drop", "why it is not done"),
    Binding(("r",), "resample", "ask once more with another seed; also: seed=7 temperature=1", "sample", "sample", "1"),
    Binding(("k",), "samples", "ask for several replies and see them side by side", "sample", "how many more", "3"),
    Binding(("1",), "choose", "1 to 9: choose this sample", "choose", is_daily=False),
    Binding(("t",), "type", f"type into its terminal yourself; {TYPING_ENDS} gives it back"),
    Binding(("m",), "message", "tell the model something with its next message", "say", "tell the model"),
    Binding(("v",), "verify", "let the verifier judge a copy, now", "verify"),
    Binding(("S",), "snapshot", "keep the container's files as an image", "snapshot", is_daily=False),
    Binding(("b",), "rewind", "do it again up to a step, in a fresh container", "rewind", "back to the reply of step"),
    Binding(("C",), "cassette", "save its model's replies, to be played back", "cassette", is_daily=False),
    Binding(("p",), "pause", "hold it before its next model call, or let it go on"),
    Binding((":",), "command", "a command in words, as scripts write them", "", ":", is_daily=False),
    Binding(("tab",), "pane", "the terminal, the steps, the samples; arrows and page keys scroll the steps"),
    Binding(("q",), "quit", "end the trial, and remove its container"),
    Binding(("Q",), "quit, keep", "end the trial, and keep its container", is_daily=False),
    Binding(("?",), "help", "this page"),
)
"""All of them, in the order of the help."""
BY_PRESS = {press: binding for binding in KEYS for press in binding.presses}
