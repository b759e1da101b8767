"""What holds for every protocol, also for new ones: prompts, marks, and replies that it writes and reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.protocols import PROTOCOLS, load_protocol
from harness.protocols.base import ActionProtocol, Command, CommandResult, Gap, Keys, Parsed, ScreenView, View

LONG = "x" * 400
FROZEN = {
    "keystrokes-json": (
        "a418ff763b18c49f8016a31e2775b05649c2c1bbedf882d11fe3e590a95c63b4",
        "3a4d7918296321c70721cd4a3843014e312ad9a25ebb0b91c709407300608f0a",
    ),
    "keystrokes-xml": (
        "a21c8d52185d756c7551ed2f2c58a44787251e22a815d5e0ddf358ea663c2bd0",
        "a7e88ee025c09129df35a48c55f2b8f8593e1aa2a5d619a2485f7db185a0bfe1",
    ),
    "bash-block": (
        "0079df1332e8484e9619cdaaf170d2755a4c9b3bac44eb1d3a7b6ea4f6cb4a31",
        "5c073f540de08811fb386a6ed64673bc913d02f95dfe7516664f315b2003747d",
    ),
    "bash-tool": (
        "c0c646b739f7b4f0b9c7d7fa4b57c158b96afa7059217c834e58db31949fcafe",
        "7b48ddfd4cbcb3abce55cb7d4c1d640e5b68ba9c8119a1b96a31aa3f96b0a983",
    ),
    "thinking-bash": (
        "30697361418e9bf15255de85e601f178d2e75e343f2c5409f675f2f632ab0d9a",
        "a0549db59f0c68355b27cf52e5289f3e263f50eaa276eb41ad1ae1f0ff8716f3",
    ),
}
"""By protocol, the hash of its prompt in run.json, and of all messages that it can send: with other prompts, a score is
not comparable. A changed hash here means that the runs of before are not comparable with those to come."""
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from('\n`<>&"\\'), min_size=1, max_size=40)


def variants(name: str) -> Iterator[ActionProtocol]:
    """The protocol with each setting that changes its prompts."""
    for size in (200, 10_000):
        protocol: Any = load_protocol(name, None, size)
        yield from map(protocol.in_shell, ("persistent", "fresh")) if protocol.types_commands else [protocol]


def views() -> Iterator[View]:
    """Everything that a terminal can come to."""
    for notes, new, elided in product([(), ("shell_ended: It ended.",)], [None, "", "new\n", LONG], [0, 3]):
        yield ScreenView("$ ls\nfile", new, elided, notes)
    gap = Gap("he", "ad", 7, 7)
    for output, code, late, behind, notes in product(
        ["", "file\n", LONG], [None, 0, 2], [False, True], ["", "log\n"], [(), ("keys_lost: Some.",)]
    ):
        yield CommandResult(output, code, late, None, behind, notes)
        yield CommandResult(gap.text, code, late, gap, behind, notes)


def messages(protocol: ActionProtocol) -> Iterator[object]:
    """Every message of a protocol to the model."""
    yield list(protocol.tools)
    for screen in ("", "$ ", LONG):
        yield [message.model_dump(mode="json") for message in protocol.first_messages("Do it.", screen)]
    both = (False, True)
    for view, warnings, complete, claimed in product(views(), [(), ("a: One.", "b: Two.")], both, both):
        yield protocol.respond(Parsed((), complete, warnings), view, claimed=claimed).message
    yield from (protocol.complain("It is wrong.", view) for view in (None, *views()))


def hash_of_all_messages(name: str) -> str:
    sent = [message for protocol in variants(name) for message in messages(protocol)]
    return hashlib.sha256(json.dumps(sent).encode()).hexdigest()


@pytest.mark.parametrize("name", FROZEN)
def test_prompts_stay_as_they_were(name: str) -> None:
    assert (load_protocol(name).prompt_hash, hash_of_all_messages(name)) == FROZEN[name]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_mark_of_a_protocol_comes_before_all_others_in_its_prompt(name: str) -> None:
    protocol = load_protocol(name)
    prompt = "\n".join(message.content for message in protocol.first_messages("Do it.", "$ "))
    found = {other: prompt.find(load_protocol(other).mark) for other in PROTOCOLS}
    assert found[name] == min(place for place in found.values() if place >= 0)


@pytest.mark.parametrize("name", PROTOCOLS)
@given(command=texts.map(str.strip).filter(bool))
def test_a_protocol_reads_what_it_writes(name: str, command: str) -> None:
    protocol = load_protocol(name)
    action = Command(command) if protocol.types_commands else Keys(f"{command}\n", 0.5)
    for complete in (False, True):
        reply = protocol.write("I look.", "I go on.", [action], complete=complete)
        parsed = protocol.parse(reply.content, reply.tool_calls)
        assert (parsed.complete, parsed.warnings) == (complete, ())
        assert parsed.actions == (action,) or (complete and protocol.types_commands)
