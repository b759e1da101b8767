"""What a key press means: something that is shown in another way, or a wish that somebody else fulfils."""

from __future__ import annotations

from typing import Literal, NamedTuple

from tbench.cli.debug.keys import BY_PRESS, Binding
from tbench.cli.debug.presses import Press
from tbench.cli.debug.shown import Question, Shown
from tbench.cli.debug.words import SHOWN

_SCROLLS = {"up": 1, "down": -1, "page-up": 10, "page-down": -10, "home": 1 << 30, "end": -(1 << 30)}


class Wanted(NamedTuple):
    """What the user wants: a command in words done, the reply edited, to type into the terminal, or to leave."""

    kind: Literal["do", "edit", "type", "leave"]
    words: str = ""
    """The command; where somebody leaves, the one that ends the trial, or nothing."""


def wish(shown: Shown, press: Press, *, is_guest: bool = False) -> Wanted | None:
    """Change what is shown by a key press; what is wanted beyond that. A guest's leaving does not end the trial."""
    if press.name == "ctrl-c":
        return Wanted("leave")
    if shown.helps:
        shown.helps = False
        return None
    if shown.prompt is not None:
        return _answered(shown, shown.prompt, press)
    if press.name in _SCROLLS:
        shown.back = max(0, shown.back + _SCROLLS[press.name])
        return None
    if press.name == "paste":
        shown.says("pasted text goes where something is asked, or into the terminal (t)", is_bad=True)
        return None
    if press.name.isdigit() and press.name != "0":
        return Wanted("do", f"choose {press.name}")
    binding = BY_PRESS.get(press.name)
    if binding is None:
        shown.says("no such key; ? shows them")
        return None
    return _bound(shown, binding, is_guest)


def _bound(shown: Shown, binding: Binding, is_guest: bool) -> Wanted | None:
    match binding.name:
        case "help":
            shown.helps = True
        case "pane":
            shown.next_pane()
        case "pause":
            return Wanted("do", "continue" if shown.debug.waits_for == "person" else "pause")
        case "type":
            return Wanted("type")
        case "edit" if shown.debug.draft is not None:
            return Wanted("edit")
        case "edit":
            shown.says("no reply waits that could be edited", is_bad=True)
        case "quit" | "quit, keep" if is_guest:
            return Wanted("leave", "stay" if binding.name == "quit, keep" else "")
        case "quit" | "quit, keep" if shown.debug.ended is None:
            keeps = binding.name == "quit, keep"
            asks = f"end the trial, and {'keep' if keeps else 'remove'} its container?"
            shown.prompt = Question(asks, "quit keep" if keeps else "quit", is_question=True)
        case "quit" | "quit, keep":
            return Wanted("leave", "quit" if binding.name == "quit" else "quit keep")
        case _ if binding.asks:
            shown.prompt = Question(binding.asks, binding.words, default=binding.default)
        case _:
            return Wanted("do", binding.words)
    return None


def _answered(shown: Shown, prompt: Question, press: Press) -> Wanted | None:
    """Go on with what is written; a wish where it is complete."""
    if press.name == "escape":
        shown.prompt = None
    elif press.name == "enter":
        shown.prompt = None
        return command_wish(shown, prompt.command)
    else:
        prompt.text.press(press)
    return None


def command_wish(shown: Shown, words: str) -> Wanted | None:
    """The wish that a command in words is."""
    name = words.partition(" ")[0]
    if name == "quit":
        return Wanted("leave", words)
    if name in SHOWN:
        shown.helps, shown.pane = name == "help", "steps" if name == "steps" else "terminal"
        return None
    return Wanted("do", words) if words else None
