"""bash-block: which replies hold a command, what goes back, and what ends a run.

Long inputs are there to finish at all: they would take minutes if they were read more than once. They have 200 KB
here, and a megabyte under `make test-all`.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampled import examples
from sizes import MUCH

from harness.errors import FormatError
from harness.protocols.base import Command, CommandResult, Gap, Parsed, ScreenView
from harness.protocols.bash import MARKER, SUBMIT_COMMAND, BashBlock
from harness.trajectory import ToolCall

PROTOCOL = BashBlock()
LS = "```bash\nls -la\n```"
SUBMIT = Parsed(actions=(Command(SUBMIT_COMMAND),), complete=True)


def kinds(parsed: Parsed) -> list[str]:
    return [warning.partition(": ")[0] for warning in parsed.warnings]


def command_of(content: str) -> str:
    (action,) = PROTOCOL.parse(content).actions
    assert isinstance(action, Command)
    return action.command


def observed(result: CommandResult, parsed: Parsed | None = None) -> str:
    return PROTOCOL.respond(parsed or Parsed(), result, claimed=False).message


# -- accepted ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "command"),
    [
        (LS, "ls -la"),
        ("THOUGHT: look.\n\n" + LS + "\n\nThat is it.", "ls -la"),
        ("<think>```bash\nrm x\n```</think>" + LS, "ls -la"),
        ("```bash\nrm x\n``` or\n</think>\n```sh\nfoo\n```\n" + LS, "ls -la"),
        ("no opening tag ```bash\nrm x\n```\n</think>\n" + LS, "ls -la"),
        ("<think>\n```bash\nunclosed draft</think>\n" + LS, "ls -la"),
        ("```bash \t\nls\n``` ", "ls"),
        ("```bash\r\nls\n```\r\n", "ls"),
        ("```bash\n\n  cd x\n\nls\n\n\n```", "\n  cd x\n\nls"),
        ("```bash\ncat <<E\n  ```\nE\n```", "cat <<E\n  ```\nE"),
        ("```bash\necho '```' x\n```", "echo '```' x"),
        ("````bash\ncat <<E\n```python\n1\n```\nE\n````", "cat <<E\n```python\n1\n```\nE"),
        ("  ```bash\n  ls\n  ```", "  ls"),
        ("```python\nprint()\n```\n" + LS, "ls -la"),
        ("An example:\n```\nfoo\n```\n" + LS, "ls -la"),
        ("```sh\nfoo\n```\n" + LS, "ls -la"),
        ("Why\n```bash\ngrep '</think>' x\n```", "grep '</think>' x"),
        ("<think>a</think>\n```bash\ngrep '</think>' x\n```", "grep '</think>' x"),
        ("<think>{ {{ ` ``` {</think>" + LS, "ls -la"),
        ('{"command": "rm x"} {"command": "rm x"}\n' + LS, "ls -la"),
    ],
)
def test_the_only_bash_block_is_the_command(content: str, command: str) -> None:
    parsed = PROTOCOL.parse(content)
    assert parsed.actions == (Command(command),)
    assert parsed.warnings == ()
    assert not parsed.complete


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("```sh\nls\n```", "block_label"),
        ("```shell\nls\n```", "block_label"),
        ("```Bash\nls\n```", "block_label"),
        ("Run this: ```bash\nls\n```", "block_position"),
        ("```bash\nls\ud800\n```", "lone_surrogate"),
    ],
)
def test_leniently_accepted_blocks_are_warned_of(content: str, kind: str) -> None:
    parsed = PROTOCOL.parse(content)
    assert kinds(parsed) == [kind]
    assert command_of(content) in {"ls", "ls\ufffd"}


def test_the_first_line_that_is_exactly_the_fence_closes_the_block() -> None:
    assert command_of("```bash\nls\n```\nE\n```") == "ls"


# -- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        ("", "no_block", "Found 0 bash blocks"),
        ("I am done.", "no_block", "Found 0"),
        ("```\nls\n```", "no_block", "Found 0"),
        ("```python\nls\n```", "no_block", "Found 0"),
        ("`bash ls`", "no_block", "Found 0"),
        ("```bash ls```", "no_block", "Found 0"),
        ('{"command": "ls"}{"command": "ls"}', "no_block", "Found 0"),
        ("<bash>ls</bash>", "no_block", "Found 0"),
        ("<think>" + LS, "no_block", "Found 0"),
        ("<think>" + LS + "</think>done", "no_block", "Found 0"),
        (LS + "\n" + LS, "several_blocks", "Found 2 bash blocks"),
        (LS + "\n" + LS + "\n" + LS, "several_blocks", "Found 3 bash blocks"),
        ("```sh\nls\n```\n```sh\nls\n```", "several_blocks", "Found 2"),
        (LS + "\n```bash\nls", "several_blocks", "Found 2"),
        ("```bash\nls", "unclosed_block", "Found 0 complete"),
        ("```bash\nls ```", "unclosed_block", "Found 0 complete"),
        ("```bash\n```", "empty_block", "empty"),
        ("```bash\n \n\t\n```", "empty_block", "empty"),
        ("```bash\ncat <<E\n```python\n1\n```\nE\n```", "nested_fence", "Use ```` for"),
    ],
)
def test_other_replies_are_refused(content: str, kind: str, said: str) -> None:
    with pytest.raises(FormatError, match=said) as caught:
        PROTOCOL.parse(content)
    assert caught.value.kind == kind


def test_tool_calls_are_not_the_command() -> None:
    calls = [ToolCall(id="1", name="bash", arguments='{"command": "rm x"}')]
    assert PROTOCOL.parse(LS, calls) == PROTOCOL.parse(LS)
    with pytest.raises(FormatError, match="Found 0"):
        PROTOCOL.parse("", calls)


@pytest.mark.parametrize("size", range(len("```bash\n"), len(LS)))
def test_a_reply_cut_inside_its_block_is_never_run(size: int) -> None:
    with pytest.raises(FormatError) as caught:
        PROTOCOL.parse(LS[:size])
    assert caught.value.kind == "unclosed_block"


# -- fuzz ----------------------------------------------------------------------------------------

anything = st.text(st.characters(exclude_categories=[]))
pieces = st.sampled_from(
    [
        "```bash",
        "```",
        "````bash",
        "````",
        "```sh",
        "\n",
        " ",
        "<think>",
        "</think>",
        LS,
        SUBMIT_COMMAND,
        "\ud800",
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
def test_any_text_is_understood_or_refused(content: str) -> None:
    understood_or_refused(content)


@examples(300)
@given(st.integers(0, 60), st.integers(0, 20), pieces | anything)
def test_any_mutation_of_a_reply_is_understood_or_refused(at: int, length: int, text: str) -> None:
    whole = f"<think>hm</think>\nTHOUGHT: look.\n\n{LS}\n"
    understood_or_refused(whole[:at] + text + whole[at + length :])


@pytest.mark.parametrize(
    "unit",
    [*"`{ \n", "```", "```\n", "```bash", "```bash\n", "```bash\n</think>\n```\n", "<think>", "</think>", "a\n", LS],
)
@MUCH
@pytest.mark.parametrize("front", ["", "<think>", "```bash\n"])
def test_much_of_anything_is_read_in_linear_time(front: str, unit: str, much: int) -> None:
    understood_or_refused(front + unit * (much // len(unit)) + "\n```")


def test_many_lines_behind_a_long_one_are_read_in_linear_time() -> None:
    understood_or_refused("x" * 500_000 + "```bash\n" + "\n" * 500_000)


@given(anything.filter(lambda text: "`" not in text))
def test_a_command_comes_through_exactly(text: str) -> None:
    command = text.encode("utf-8", "ignore").decode().rstrip("\n")
    if command.strip():
        assert command_of(f"THOUGHT: x\n```bash\n{command}\n```\n") == command


# -- observations --------------------------------------------------------------------------------


def test_exit_code_and_output_are_shown() -> None:
    assert observed(CommandResult("a\nb\n", 2)) == "<returncode>2</returncode>\n<output>\na\nb\n</output>"


def test_no_output_is_said() -> None:
    assert observed(CommandResult("", 0)) == "<returncode>0</returncode>\n<output>(no output)</output>"


def test_a_time_out_is_said_with_advice() -> None:
    message = observed(CommandResult("Password: ", None, timed_out=True))
    assert "exceeded its time limit" in message
    assert "in the background" in message
    assert "<returncode>unknown</returncode>\n<output>\nPassword: \n</output>" in message


def test_long_output_is_cut_with_a_hint() -> None:
    message = observed(CommandResult("h" * 6_000 + "t" * 6_000, 0))
    assert "h" * 5_000 + "\n[... 2000 bytes left out ...]\n" + "t" * 5_000 in message
    assert "too long" in message


def test_bytes_left_out_by_the_terminal_are_in_the_same_number() -> None:
    gap = Gap("h" * 6_000, "t" * 6_000 + "\n", elided_bytes=100, elided_chars=50)
    message = observed(CommandResult(gap.text, 0, gap=gap))
    assert message.count("left out ...]") == 1
    assert "h" * 5_000 + "\n[... 2100 bytes left out ...]\n" + "t" * 5_000 + "\n</output>" in message
    assert "too long" in message


def test_a_gap_of_the_terminal_is_shown_with_its_own_number_where_the_limit_is_larger() -> None:
    gap = Gap("head", "tail\n", elided_bytes=100, elided_chars=50)
    message = observed(CommandResult(gap.text, 0, gap=gap))
    assert "<output>\nhead\n[... 100 bytes left out ...]\ntail\n</output>" in message
    assert "too long" in message


def test_the_screen_is_shown_where_the_shell_told_nothing() -> None:
    response = PROTOCOL.respond(Parsed(), ScreenView(">>> ", None), claimed=False)
    assert "did not report an exit code" in response.message
    assert response.message.endswith("Current terminal screen:\n>>> ")


def test_warnings_are_fed_back() -> None:
    parsed = PROTOCOL.parse("```sh\nls\n```")
    assert observed(CommandResult("", 0), parsed).startswith("<warning>The block is labelled 'sh'")


def test_the_conversation_opens_with_a_system_and_a_user_message() -> None:
    system, user = PROTOCOL.first_messages("Fix it.", "root@x:/app# \n\n")
    assert (system.role, user.role) == ("system", "user")
    assert "exactly ONE bash code block" in system.content
    assert "Please solve this task:\n\nFix it.\n" in user.content
    assert user.content.endswith("The terminal shows at the start:\n\nroot@x:/app#")
    assert SUBMIT_COMMAND in user.content
    assert "shows at the start" not in PROTOCOL.first_messages("Fix it.", "\n")[1].content


def test_the_format_example_of_the_prompt_is_itself_well_formed() -> None:
    system, _ = PROTOCOL.first_messages("Fix it.", "")
    assert command_of(system.content) == "apt-cache search zlib | grep dev"


def test_a_complaint_has_the_error_and_the_format() -> None:
    message = PROTOCOL.complain("Found 2 bash blocks.", None)
    assert "<error>\nFound 2 bash blocks.\n</error>\n\nAnswer again" in message
    assert "Current terminal screen:\n$" in PROTOCOL.complain("x", ScreenView("$", None))


# -- submission ----------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [SUBMIT_COMMAND, f"\n  {SUBMIT_COMMAND} \n"])
def test_the_submit_command_ends_the_run_at_once(block: str) -> None:
    parsed = PROTOCOL.parse(f"Done.\n```bash\n{block}\n```")
    assert parsed.complete
    response = PROTOCOL.respond(parsed, CommandResult(f"{MARKER}\n", 0), claimed=False)
    assert response.submitted
    assert not response.claimed


@pytest.mark.parametrize(
    "command",
    [
        f"make && {SUBMIT_COMMAND}",
        f"{SUBMIT_COMMAND}; ls",
        f"{SUBMIT_COMMAND}\nls",
        f"cd /\n{SUBMIT_COMMAND}",
        f"echo '{MARKER}'",
        f"echo -n {MARKER}",
        "cat notes.txt",
    ],
)
def test_the_marker_in_another_command_never_ends_a_run(command: str) -> None:
    parsed = PROTOCOL.parse(f"```bash\n{command}\n```")
    response = PROTOCOL.respond(parsed, CommandResult(f"{MARKER}\n", 0), claimed=True)
    assert not parsed.complete
    assert not response.submitted


@pytest.mark.parametrize(
    "view",
    [
        CommandResult(f"{MARKER}\n", 1),
        CommandResult(f"{MARKER}\n", None),
        CommandResult(f"{MARKER}\n", 0, timed_out=True),
        CommandResult(f"warning\n{MARKER}\n", 0),
        CommandResult(f"> {MARKER}\n", 0),
        CommandResult("", 0),
        ScreenView(f"{MARKER}\n$ ", f"{MARKER}\n"),
    ],
)
def test_a_submit_command_that_did_not_do_what_it_should_goes_on(view: CommandResult | ScreenView) -> None:
    assert not PROTOCOL.respond(SUBMIT, view, claimed=True).submitted
