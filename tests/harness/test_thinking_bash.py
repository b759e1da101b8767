"""thinking-bash: strict, repairable and hopeless replies, and what goes back.

Long inputs are there to finish at all: they would take minutes if they were read more than once. They have 200 KB
here, and a megabyte under `make test-all`.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampled import examples
from sizes import MUCH

from harness.agent import Agent, Limits
from harness.errors import FormatError
from harness.fakes import FakeTerminal, ScriptedModel
from harness.protocols.base import Command, CommandResult, Parsed, ScreenView
from harness.protocols.bash import MARKER, SUBMIT_COMMAND
from harness.protocols.thinking_bash import Extraction, ThinkingBash, extract
from harness.trajectory import Outcome

PROTOCOL = ThinkingBash()
BLOCK = "```bash\nls -la\n```"
STRICT = f"<thinking>\nI look.\n</thinking>\n{BLOCK}"
STRICT_FORM = re.compile(r"^<thinking>\s*[\s\S]+?\s*</thinking>\s*```bash\n[\s\S]+?\n```$")
"""The pattern of the formatting reward; it backtracks, so only for short texts."""


def kinds(warnings: tuple[str, ...]) -> list[str]:
    return [warning.partition(": ")[0] for warning in warnings]


def refused(content: str) -> FormatError:
    with pytest.raises(FormatError) as caught:
        PROTOCOL.parse(content)
    str(caught.value).encode()
    return caught.value


# -- strict --------------------------------------------------------------------------------------

WELL_FORMED: dict[str, tuple[str, str]] = {
    "canonical": (STRICT, "ls -la"),
    "on one line": (f"<thinking>a</thinking>{BLOCK}", "ls -la"),
    "a trailing newline": (STRICT + "\n", "ls -la"),
    "blank thinking": (f"<thinking> \n</thinking>{BLOCK}", "ls -la"),
    "two thinking sections": (f"<thinking>a</thinking><thinking>b</thinking>\n{BLOCK}", "ls -la"),
    "several lines": ("<thinking>a</thinking>\n```bash\ncd x\n\nls\n```", "cd x\n\nls"),
    "a draft in the thinking": (f"<thinking>\n```bash\nrm x\n```\n</thinking>\n{BLOCK}", "ls -la"),
    "an open draft in the thinking": (f"<thinking>\n```bash\nrm x</thinking>\n{BLOCK}", "ls -la"),
    "braces in the thinking": (f"<thinking>{{ ``` {{</thinking>\n{BLOCK}", "ls -la"),
    "a tag in the command": (
        "<thinking>a</thinking>\n```bash\ngrep '</thinking>' '</think>' x\n```",
        "grep '</thinking>' '</think>' x",
    ),
    "backticks in the command": ("<thinking>a</thinking>\n```bash\necho '```' x\n```", "echo '```' x"),
    "longer fences": (
        "<thinking>a</thinking>\n````bash\ncat <<E\n```python\n```\nE\n````",
        "cat <<E\n```python\n```\nE",
    ),
    "thinking of the other kind in front": (f"<think>{BLOCK}</think>{STRICT}", "ls -la"),
}


@pytest.mark.parametrize("name", WELL_FORMED)
def test_a_well_formed_reply_is_run_without_a_warning(name: str) -> None:
    content, command = WELL_FORMED[name]
    assert PROTOCOL.parse(content) == Parsed(actions=(Command(command),))
    assert extract(content) == Extraction(command)


# -- repaired ------------------------------------------------------------------------------------

REPAIRABLE: dict[str, tuple[str, list[str]]] = {
    "no thinking": (BLOCK, ["thinking_section"]),
    "empty thinking": (f"<thinking></thinking>{BLOCK}", ["thinking_section"]),
    "thinking without its opening tag": (f"I look.</thinking>\n{BLOCK}", ["thinking_section"]),
    "only the other kind of thinking": (f"<think>I look.</think>\n{BLOCK}", ["thinking_section"]),
    "text before the thinking": (f"Sure! {STRICT}", ["thinking_section"]),
    "prose between": (f"<thinking>a</thinking>\nI run:\n{BLOCK}", ["extra_text"]),
    "prose on the fence's line": (f"<thinking>a</thinking>\nI run: {BLOCK}", ["block_position"]),
    "text after": (f"{STRICT}\nThis lists files.", ["extra_text"]),
    "labelled sh": (STRICT.replace("bash", "sh"), ["block_label"]),
    "labelled Bash": (STRICT.replace("bash", "Bash"), ["block_label"]),
    "no label": (STRICT.replace("bash", ""), ["block_label"]),
    "prose between two thinking sections": (
        f"<thinking>a</thinking> or <thinking>b</thinking>\n{BLOCK}",
        ["extra_text"],
    ),
    "a reply that goes on by itself": (
        f"{STRICT}\n<thinking>b</thinking>\n```bash\nrm x\n```",
        ["extra_text", "several_blocks"],
    ),
    "a block before the thinking": (
        f"{BLOCK}\n<thinking>b</thinking>\n```bash\nrm x\n```",
        ["thinking_section", "extra_text", "several_blocks"],
    ),
    "a draft in thinking without its opening tag": (
        f"```bash\nrm x\n```\n</thinking>\n{BLOCK}",
        ["thinking_section"],
    ),
    "several blocks": (f"{STRICT}\n```bash\nrm x\n```", ["extra_text", "several_blocks"]),
    "its output imagined": (f"{STRICT}\n```\nfile\n```", ["extra_text", "several_blocks"]),
    "another language first": (
        f"<thinking>a</thinking>\n```python\nprint()\n```\n{BLOCK}",
        ["extra_text"],
    ),
    "half a surrogate pair": (STRICT.replace("-la", "\ud800"), ["lone_surrogate"]),
}


@pytest.mark.parametrize("name", REPAIRABLE)
def test_a_repairable_reply_is_run_and_warned_of(name: str) -> None:
    content, expected = REPAIRABLE[name]
    parsed = PROTOCOL.parse(content)
    assert kinds(parsed.warnings) == expected
    assert parsed.actions in {(Command("ls -la"),), (Command("ls \ufffd"),)}


# -- hopeless ------------------------------------------------------------------------------------

HOPELESS: dict[str, tuple[str, str]] = {
    "empty": ("", "no_block"),
    "prose": ("I am done.", "no_block"),
    "only thinking": ("<thinking>a</thinking>", "no_block"),
    "only a draft in the thinking": (f"<thinking>\n{BLOCK}\n</thinking>\nDone.", "no_block"),
    "another language": ("<thinking>a</thinking>\n```python\nprint()\n```", "no_block"),
    "JSON": ('{"command": "ls"}{"command": "ls"}', "no_block"),
    "a fence on one line": ("<thinking>a</thinking>\n```bash ls```", "no_block"),
    "open thinking": (f"<thinking>I look.\n{BLOCK}", "unclosed_thinking"),
    "open thinking after closed": (f"<thinking>a</thinking><thinking>b\n{BLOCK}", "unclosed_thinking"),
    "open thinking behind text": (f"Sure! <thinking>I look.\n{BLOCK}", "unclosed_thinking"),
    "open thinking that swallows its end": (
        "<thinking>\n```bash\nrm x</thinking>\n\n```\nls\n```",
        "unclosed_thinking",
    ),
    "open thinking of the other kind": (f"<think>{STRICT}", "no_block"),
    "cut in the thinking": ("<thinking>I lo", "unclosed_thinking"),
    "cut in the command": (STRICT[:-5], "unclosed_block"),
    "cut before the fence": (STRICT[:-3], "unclosed_block"),
    "an empty block": ("<thinking>a</thinking>\n```bash\n```", "empty_block"),
    "a blank block": ("<thinking>a</thinking>\n```bash\n \t\n```", "empty_block"),
    "an empty block first": (f"<thinking>a</thinking>\n```bash\n```\n{BLOCK}", "empty_block"),
    "closed too early": ("<thinking>a</thinking>\n```bash\ncat <<E\n```python\n```\nE\n```", "nested_fence"),
}


@pytest.mark.parametrize("name", HOPELESS)
def test_a_hopeless_reply_is_refused(name: str) -> None:
    content, kind = HOPELESS[name]
    assert refused(content).kind == kind


# -- fuzz ----------------------------------------------------------------------------------------

anything = st.text(st.characters(exclude_categories=[]))
pieces = st.sampled_from(
    [
        *("```bash", "```", "````bash", "```sh", "```python", "\n", " ", "`", "{", "ls"),
        *("<thinking>", "</thinking>", "<think>", "</think>", STRICT, BLOCK, SUBMIT_COMMAND, "\ud800"),
    ]
)


def understood_or_refused(content: str) -> None:
    try:
        parsed = PROTOCOL.parse(content)
    except FormatError as error:
        PROTOCOL.complain(str(error), None).encode()
        return
    (action,) = parsed.actions
    assert isinstance(action, Command)
    assert action.command.strip()
    action.command.encode()
    PROTOCOL.respond(parsed, CommandResult(content, 0), claimed=False).message.encode()


@examples(500)
@given(st.lists(pieces | anything, max_size=25).map("".join))
def test_any_pieces_are_understood_or_refused(content: str) -> None:
    understood_or_refused(content)


@examples(300)
@given(st.integers(0, len(STRICT)), st.integers(0, 10), pieces | anything)
def test_any_mutation_of_a_reply_is_understood_or_refused(at: int, length: int, text: str) -> None:
    understood_or_refused(STRICT[:at] + text + STRICT[at + length :])


@examples(500)
@given(
    st.lists(pieces | st.sampled_from("ab\n "), max_size=8).map("".join),
    st.lists(st.sampled_from(["ls", "\n", " ", "x", "`"]), min_size=1, max_size=6).map("".join),
)
def test_a_reply_without_warnings_has_the_strict_form(thinking: str, command: str) -> None:
    content = f"<thinking>{thinking}</thinking>\n```bash\n{command}\n```"
    try:
        extraction = extract(content)
    except FormatError:
        return
    if not extraction.warnings and "<think>" not in content and "</think>" not in content and "````" not in content:
        assert STRICT_FORM.match(content)


@given(anything.filter(lambda text: "`" not in text))
def test_a_command_comes_through_exactly(text: str) -> None:
    command = text.encode("utf-8", "ignore").decode().rstrip("\n")
    if command.strip():
        assert PROTOCOL.parse(f"<thinking>a</thinking>\n```bash\n{command}\n```").actions == (Command(command),)


@pytest.mark.parametrize(
    "unit",
    [
        *(
            "<thinking>",
            "</thinking>",
            "<thinking></thinking>",
            "<think>",
            "</think>",
            "`",
            "```",
            "```\n",
            "```bash\n",
            "``` ",
            "```bash ",
        ),
        *(" ", "\n", " \n", "{", '"', "\\", "a", "```a", "```bash\n</thinking>\n```\n", "```\n</think>\n```\n"),
    ],
)
@MUCH
@pytest.mark.parametrize("front", ["<thinking>", "<thinking>a</thinking>\n```bash\n"])
def test_much_of_anything_is_read_in_linear_time(front: str, unit: str, much: int) -> None:
    understood_or_refused(front + unit * (much // len(unit)) + "\n```")


def test_many_lines_behind_a_long_one_are_read_in_linear_time() -> None:
    understood_or_refused("x" * 500_000 + "```bash\n" + "\n" * 500_000)


# -- messages ------------------------------------------------------------------------------------


def test_the_system_message_is_the_sentence_of_the_training() -> None:
    system, user = PROTOCOL.first_messages("Count the files.", "root@x:/app# ")
    assert (system.role, user.role) == ("system", "user")
    assert system.content == (
        "You are a local OS Terminal Controller Agent. State your thinking process within <thinking> tags, "
        "followed by the exact terminal command block."
    )
    assert user.content.startswith("Count the files.\n")
    assert SUBMIT_COMMAND in user.content
    assert user.content.endswith("The terminal shows:\nroot@x:/app#")


def test_the_observation_is_the_next_instruction() -> None:
    message = PROTOCOL.respond(Parsed(), CommandResult("a\nb\n", 2), claimed=False).message
    assert message.startswith("The command ended with exit code 2 and printed:\na\nb\n\nContinue")
    assert "printed:\n(no output)\n" in PROTOCOL.respond(Parsed(), CommandResult("", 0), claimed=False).message


def test_a_time_out_a_cut_and_a_screen_are_said() -> None:
    timed_out = PROTOCOL.respond(Parsed(), CommandResult("x" * 20_000, None, timed_out=True), claimed=False).message
    assert "time limit" in timed_out
    assert "exit code unknown" in timed_out
    assert "[... 10000 bytes left out ...]" in timed_out
    screen = PROTOCOL.respond(Parsed(), ScreenView(">>> ", None), claimed=False).message
    assert screen.endswith("Current terminal screen:\n>>> ")


def test_a_complaint_has_the_error_and_a_well_formed_example() -> None:
    message = PROTOCOL.complain("Found 0 bash blocks.", None)
    assert "Found 0 bash blocks." in message
    example = message[message.index("<thinking>why") :]
    assert PROTOCOL.parse(example) == Parsed(actions=(Command("your_command_here"),))


# -- in the loop ---------------------------------------------------------------------------------

DONE = CommandResult(f"{MARKER}\n", 0)


async def test_several_requests_end_with_the_submit_command() -> None:
    submit = f"<thinking>Done.</thinking>\n```bash\n{SUBMIT_COMMAND}\n```"
    terminal = FakeTerminal(["$ ", CommandResult("file\n", 0), DONE])
    trajectory = await Agent(ScriptedModel([STRICT, submit]), terminal, PROTOCOL, Limits()).run("List the files.")
    assert trajectory.outcome is Outcome.SUBMITTED
    assert terminal.typed == ["ls -la", SUBMIT_COMMAND]
    assert [message.role for message in trajectory.messages] == ["system", *["user", "assistant"] * 2, "user"]
    assert trajectory.warnings == {}


async def test_a_single_request_ends_at_the_step_limit() -> None:
    terminal = FakeTerminal(["$ ", CommandResult("file\n", 0)])
    trajectory = await Agent(ScriptedModel([STRICT]), terminal, PROTOCOL, Limits(steps=1)).run("List the files.")
    assert trajectory.outcome is Outcome.STEP_LIMIT
    assert terminal.typed == ["ls -la"]
