"""bash-tool: which tool calls are run, what stays in the history, and what goes back.

Long inputs are there to finish at all: they would take minutes if they were read more than once. They have 200 KB
here, and a megabyte under `make test-all`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampled import examples
from sizes import MUCH

from harness.agent import Agent, Limits
from harness.errors import FormatError
from harness.fakes import FakeTerminal, ScriptedModel
from harness.protocols.base import Command, CommandResult, Gap, Parsed, ScreenView
from harness.protocols.bash import MARKER, SUBMIT_COMMAND, BashTool
from harness.trajectory import Message, Outcome, Reply, ToolCall, Trajectory

PROTOCOL = BashTool()
WIRE = Path(__file__).parents[3] / "shared" / "data" / "vllm-wire"
LS = '{"command": "ls"}'


def call(arguments: str = LS, name: str = "bash", id: str = "c1") -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


def submit(id: str = "end") -> Reply:
    return Reply(content="Done.", tool_calls=(call(json.dumps({"command": SUBMIT_COMMAND}), id=id),))


def kinds(warnings: tuple[str, ...]) -> list[str]:
    return [warning.partition(": ")[0] for warning in warnings]


def refused(content: str, *calls: ToolCall) -> FormatError:
    with pytest.raises(FormatError) as caught:
        PROTOCOL.parse(content, calls)
    str(caught.value).encode()
    return caught.value


def observed(result: CommandResult, parsed: Parsed | None = None) -> str:
    return PROTOCOL.respond(parsed or Parsed(), result, claimed=False).message


# -- well-formed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", "I look.", "<think>hm</think>", "<think>{ ```bash\nrm x\n```", "</think>"])
@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (LS, "ls"),
        (' {"command":"ls"}\n', "ls"),
        ('{"command": "a\\nb\\n"}', "a\nb\n"),
        ('{"command": "echo \\"{}\\" \\\\ \\u00e9 \\ud83d\\ude00"}', 'echo "{}" \\ é 😀'),
        ('{"command": "grep \'</think>\' x"}', "grep '</think>' x"),
    ],
)
def test_the_call_is_the_command_whatever_the_text_says(content: str, arguments: str, command: str) -> None:
    made = call(arguments)
    assert PROTOCOL.parse(content, (made,)) == Parsed(actions=(Command(command),), tool_call=made)


# -- repaired ------------------------------------------------------------------------------------

REPAIRABLE: dict[str, tuple[str, list[str]]] = {
    "encoded twice": (json.dumps(LS), ["double_encoding"]),
    "another argument": ('{"command": "ls", "timeout": 10}', ["unknown_field"]),
    "an unreadable number": ('{"command": "ls", "timeout": ' + "9" * 5_000 + "}", ["unknown_field"]),
    "given twice": ('{"command": "rm x", "command": "ls"}', ["duplicate_field"]),
    "wrong key": ('{"cmd": "ls"}', ["wrong_key"]),
    "another wrong key": ('{"code": "ls"}', ["wrong_key"]),
    "right and wrong key": ('{"cmd": "rm x", "command": "ls"}', ["unknown_field"]),
    "two objects": (LS + '{"command": "rm x"}', ["extra_text"]),
    "text behind": (LS + "</tool_call>", ["extra_text"]),
    "half a surrogate pair": ('{"command": "ls\\ud800"}', ["lone_surrogate"]),
}


@pytest.mark.parametrize("name", REPAIRABLE)
def test_a_repairable_call_is_run_and_stays_in_the_history_as_it_was_understood(name: str) -> None:
    arguments, expected = REPAIRABLE[name]
    parsed = PROTOCOL.parse("", (call(arguments),))
    assert kinds(parsed.warnings) == expected
    (action,) = parsed.actions
    assert isinstance(action, Command)
    assert action.command in {"ls", "ls\ufffd"}
    assert parsed.tool_call is not None
    assert json.loads(parsed.tool_call.arguments) == {"command": action.command}
    assert (parsed.tool_call.id, parsed.tool_call.name) == ("c1", "bash")


def test_of_several_calls_only_the_first_is_run_and_kept() -> None:
    first = call()
    parsed = PROTOCOL.parse("", (first, call('{"command": "rm x"}', id="c2"), call("broken", "nope", "c3")))
    assert parsed.actions == (Command("ls"),)
    assert parsed.tool_call == first
    assert parsed.warnings == ("extra_tool_calls: Only the first of 3 tool calls counts.",)


# -- hopeless ------------------------------------------------------------------------------------

HOPELESS: dict[str, tuple[str, str]] = {
    "nothing": ("", "invalid_json"),
    "blank": (" \n", "invalid_json"),
    "a bare command": ("ls -la", "invalid_json"),
    "cut": ('{"command": "echo \'Hello', "invalid_json"),
    "without its brace": ('{"command": "ls"', "invalid_json"),
    "a raw newline": ('{"command": "a\nb"}', "invalid_json"),
    "single quotes": ("{'command': 'ls'}", "invalid_json"),
    "too deep": ('{"a":' * 100_000, "invalid_json"),
    "encoded twice and cut": (json.dumps('{"command": "ls'), "invalid_json"),
    "a string": ('"ls -la"', "wrong_type"),
    "a list": ('[{"command": "ls"}]', "wrong_type"),
    "a number": ("1", "wrong_type"),
    "null": ("null", "wrong_type"),
    "an empty object": ("{}", "missing_field"),
    "an unknown key": ('{"path": "ls"}', "missing_field"),
    "two wrong keys": ('{"cmd": "ls", "code": "ls"}', "missing_field"),
    "a list of words": ('{"command": ["ls", "-la"]}', "wrong_type"),
    "a command that is null": ('{"command": null}', "wrong_type"),
    "a wrong key's number": ('{"cmd": 1}', "wrong_type"),
    "an empty command": ('{"command": ""}', "empty_command"),
    "a blank command": ('{"command": " \\n\\t"}', "empty_command"),
}


@pytest.mark.parametrize("name", HOPELESS)
def test_a_hopeless_call_is_refused(name: str) -> None:
    arguments, kind = HOPELESS[name]
    assert refused("", call(arguments)).kind == kind


@pytest.mark.parametrize("name", ["", "Bash", "functions.bash", "submit", "\ud800"])
def test_another_function_is_refused_even_with_a_good_call_behind(name: str) -> None:
    error = refused("", call(name=name), call())
    assert error.kind == "unknown_function"
    assert kinds(error.warnings) == ["extra_tool_calls"]


OTHER_TEXTS = [
    "#include <functional>\nstd::vector<action_t> v;",
    "fn run(calls: Vec<ToolCall>) {}",
    "<rss><channel><title>x</title></channel></rss>",
    "<plugin><artifactId>x</artifactId></plugin>",
    '<form action="/x"><action android:name="y"/>',
    "usage: tool <function> <args>, <callback>, <toolchain>/bin",
    "x := <channel:0",
    '"scripts": {"test": "bash run.sh", "cmd": "x"}',
    'CMD ["bash", "-c", "script=1"]',
    "kubectl exec <pod> -- bash -c <command>",
    "Usage: bash [options] command: see man",
    'bash_command="ls" and code=200',
    'subprocess.run(["bash", script])  # code: 1',
    '{"name": "x", "input": {"a": 1}}',
]
CALLS_AS_TEXT = [
    '[bash("ls -la")]',
    '{"arguments": {"command": "ls"}, "name": "bash"}',
    "name: bash\narguments:\n  command: ls",
    # DeepSeek, with its control tokens and where the server drops them
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>bash\n```json\n"
    '{"command": "ls"}\n```<｜tool▁call▁end｜>',
    'functionbash\n```json\n{"command": "ls"}\n```',
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="bash">\n<｜DSML｜parameter name="command">ls',
    # harmony
    '<|channel|>commentary to=functions.bash <|constrain|>json<|message|>{"command":"ls"}<|call|>',
    'commentary to=functions.bash code{"command": "ls"}',
    # Llama 3 and 4
    '<|python_tag|>{"name": "bash", "parameters": {"command": "ls"}}',
    '{"name": "bash", "parameters": {"command": "ls"}}',
    '{"type": "function", "name": "shell", "parameters": {"cmd": "ls"}}',
    '[bash(command="ls")]',
    # others
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>{}",
    '<minimax:tool_call>\n<invoke name="bash">\n<parameter name="command">ls</parameter>',
    '<TOOLCALL>[{"name": "run", "arguments": {"command": "ls"}}]</TOOLCALL>',
    'functools[{"name": "bash", "arguments": {"command": "ls"}}]',
    '```tool_code\nprint(bash(command="ls"))\n```',
    'bash{"command": "ls"}',
    "bash\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>",
    '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "bash", "parameters": {"command": "ls"}}]',
]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("", "no_tool_call"),
        ("I am done.", "no_tool_call"),
        ("```bash\nls\n```", "no_tool_call"),
        ("I use the bash tool to run a (very short) command: ls", "no_tool_call"),
        ("```bash\nfor f in *; do\n  command -v $f\ndone\n```\nThe command: ls", "no_tool_call"),
        ('The file {"name": "x", "version": 3} is JSON, and bash can read it.', "no_tool_call"),
        (LS, "no_tool_call"),
        ('<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>', "raw_tool_call"),
        ('I look.\n<tool_call>\n{"name": "bash", "arg', "raw_tool_call"),
        ("<function=bash><parameter=command>ls</parameter></function>", "raw_tool_call"),
        ('[TOOL_CALLS][{"name": "bash"}]', "raw_tool_call"),
        *[(text, "raw_tool_call") for text in CALLS_AS_TEXT],
        *[(text, "no_tool_call") for text in OTHER_TEXTS],
    ],
)
def test_a_reply_without_a_call_runs_nothing(content: str, kind: str) -> None:
    assert refused(content).kind == kind


# -- as a real server sends them -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("recording", "command"),
    [
        ("B_tools_auto", "echo 'Hello, world!' > /app/hello.txt"),
        ("C_tools_auto", "echo 'Hello, world!' > /app/hello.txt"),
        ("B_tools_none", None),
        ("B_tools_length_cut", None),
        ("C_tools_length_cut", None),
    ],
)
def test_recorded_replies_are_run_or_refused(recording: str, command: str | None) -> None:
    if not WIRE.is_dir():
        pytest.skip(f"no recordings at {WIRE}")
    message = json.loads((WIRE / f"{recording}.json").read_text())["response"]["json"]["choices"][0]["message"]
    calls = [call(made["function"]["arguments"], made["function"]["name"]) for made in message.get("tool_calls", [])]
    if command is None:
        assert refused(message["content"], *calls).kind in {"raw_tool_call", "missing_field"}
    else:
        assert PROTOCOL.parse(message["content"], calls).actions == (Command(command),)


# -- fuzz ----------------------------------------------------------------------------------------

anything = st.text(st.characters(exclude_categories=[]))
json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | anything,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(anything | st.just("command"), inner, max_size=3),
    max_leaves=8,
)
pieces = st.sampled_from([*'{}[]",:\\` \n', '"command"', '": "', LS, "\\ud800", "\ud800", "</tool_call>", "ls"])
arguments_of_any_kind = (
    anything
    | st.lists(pieces | anything, max_size=15).map("".join)
    | json_values.map(json.dumps)
    | json_values.map(json.dumps).map(json.dumps)
)
any_calls = st.lists(
    st.builds(ToolCall, id=anything, name=st.just("bash") | anything, arguments=arguments_of_any_kind), max_size=3
)


def understood_or_refused(content: str, calls: list[ToolCall]) -> None:
    try:
        parsed = PROTOCOL.parse(content, calls)
    except FormatError as error:
        PROTOCOL.complain(str(error), None).encode()
        return
    (action,) = parsed.actions
    assert isinstance(action, Command)
    assert action.command.strip()
    action.command.encode()
    assert parsed.tool_call is not None
    parsed.tool_call.arguments.encode()
    assert json.loads(parsed.tool_call.arguments) == {"command": action.command}
    assert parsed.tool_call.id == calls[0].id
    PROTOCOL.respond(parsed, CommandResult(content, 0), claimed=False).message.encode()


@examples(500)
@given(anything, any_calls)
def test_any_calls_are_understood_or_refused(content: str, calls: list[ToolCall]) -> None:
    understood_or_refused(content, calls)


@examples(300)
@given(st.integers(0, 40), st.integers(0, 20), pieces | anything)
def test_any_mutation_of_a_call_is_understood_or_refused(at: int, length: int, text: str) -> None:
    whole = '{"command": "echo \\"{}\\"", "timeout": 1}'
    understood_or_refused("", [call(whole[:at] + text + whole[at + length :])])


@given(anything)
def test_a_command_comes_through_exactly(text: str) -> None:
    command = text.encode("utf-8", "ignore").decode()
    if command.strip():
        assert PROTOCOL.parse("", (call(json.dumps({"command": command})),)).actions == (Command(command),)


@pytest.mark.parametrize(
    "unit", ["{", "[", '"', "\\", '\\"', '{"command":', '{"command": "', LS, " ", "9", "<tool_call"]
)
@MUCH
@pytest.mark.parametrize("front", ["", '{"command": "', '"{', '{"command": "ls", "x": '])
def test_much_of_anything_is_read_in_linear_time(front: str, unit: str, much: int) -> None:
    many = unit * (much // len(unit))
    understood_or_refused(many, [call(front + many)])
    understood_or_refused(many, [])


# -- observations --------------------------------------------------------------------------------


def test_output_and_exit_code_are_shown() -> None:
    assert observed(CommandResult("a\nb\n", 2)) == "a\nb\n\n(exit_code=2)"


def test_no_output_is_said() -> None:
    assert observed(CommandResult("\n", 0)) == "(no output)\n\n(exit_code=0)"


def test_a_time_out_is_said_with_advice() -> None:
    message = observed(CommandResult("Password: ", None, timed_out=True))
    assert "exceeded its time limit" in message
    assert message.endswith("Password: \n\n(exit_code=unknown)")


def test_long_output_keeps_its_ends_and_says_how_much_is_missing() -> None:
    message = observed(CommandResult("h" * 6_000 + "t" * 6_000, 0))
    hint, _, rest = message.partition("---- HEAD (5000 chars) ----\n")
    assert "too long" in hint
    assert rest == (
        "h" * 5_000 + "\n---- 2000 chars elided ----\n---- TAIL (5000 chars) ----\n" + "t" * 5_000 + "\n\n(exit_code=0)"
    )


def test_characters_left_out_by_the_terminal_are_in_the_same_number() -> None:
    gap = Gap("é" * 3_000, "x" * 6_000 + "\n", elided_bytes=100, elided_chars=50)
    message = observed(CommandResult(gap.text, 0, gap=gap))
    assert "left out ...]" not in message
    assert "é\n---- 1550 chars elided ----\n---- TAIL (5000 chars) ----\nx" in message


@pytest.mark.parametrize("tail", ["tail\n", "\n\n"])
def test_a_gap_of_the_terminal_is_shown_with_its_own_number_where_the_limit_is_larger(tail: str) -> None:
    gap = Gap("head", tail, elided_bytes=100, elided_chars=50)
    message = observed(CommandResult(gap.text, 0, gap=gap))
    assert "too long" in message
    assert "(4 chars) ----\nhead\n---- 50 chars elided ----\n" in message
    assert "left out ...]" not in message


def test_the_limit_is_the_callers() -> None:
    small = BashTool(observation_bytes=10)
    message = small.respond(Parsed(), CommandResult("0123456789abc", 0), claimed=False).message
    assert "01234\n---- 3 chars elided ----" in message
    assert "Output of more than 10 bytes" in small.first_messages("Fix it.", "")[1].content


def test_the_screen_is_shown_where_the_shell_told_nothing() -> None:
    response = PROTOCOL.respond(Parsed(), ScreenView(">>> ", None), claimed=False)
    assert "did not report an exit code" in response.message
    assert response.message.endswith("Current terminal screen:\n>>> \n\n(exit_code=unknown)")


def test_warnings_are_fed_back() -> None:
    message = observed(CommandResult("", 0), PROTOCOL.parse("", (call(), call())))
    assert message.startswith("<warning>Only the first of 2 tool calls counts.</warning>\n")


# -- messages ------------------------------------------------------------------------------------


def test_the_conversation_opens_with_a_system_and_a_user_message() -> None:
    system, user = PROTOCOL.first_messages("Fix it.", "root@x:/app# \n")
    assert (system.role, user.role) == ("system", "user")
    assert "Please solve this task:\n\nFix it.\n" in user.content
    assert user.content.endswith("The terminal shows at the start:\n\nroot@x:/app#")
    assert SUBMIT_COMMAND in user.content


def test_one_function_is_offered_with_one_string() -> None:
    (tool,) = PROTOCOL.tools
    assert json.loads(json.dumps(tool)) == tool
    function = tool["function"]
    assert (tool["type"], function["name"]) == ("function", "bash")
    assert function["parameters"]["required"] == ["command"]
    assert function["parameters"]["properties"]["command"]["type"] == "string"


def test_a_prompt_file_can_describe_the_function(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{% block tool %}Runs it.{% endblock %}")
    (tool,) = BashTool(path).tools
    assert tool["function"]["description"] == "Runs it."
    assert BashTool(path).prompt_hash != PROTOCOL.prompt_hash


# -- submission ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "output", "submitted"),
    [
        (SUBMIT_COMMAND, f"{MARKER}\n", True),
        (f" {SUBMIT_COMMAND}\n", f"{MARKER}\n", True),
        (SUBMIT_COMMAND, "", False),
        (f"make && {SUBMIT_COMMAND}", f"{MARKER}\n", False),
        ("cat notes.txt", f"{MARKER}\n", False),
    ],
)
def test_only_the_submit_command_alone_ends_a_run(command: str, output: str, submitted: bool) -> None:
    parsed = PROTOCOL.parse("", (call(json.dumps({"command": command})),))
    assert PROTOCOL.respond(parsed, CommandResult(output, 0), claimed=True).submitted is submitted


# -- in the loop ---------------------------------------------------------------------------------

DONE = CommandResult(f"{MARKER}\n", 0)


async def run(replies: list[Reply | str], views: list[Any], **limits: Any) -> tuple[Trajectory, ScriptedModel]:
    model = ScriptedModel(replies)
    trajectory = await Agent(model, FakeTerminal(["$ ", *views]), PROTOCOL, Limits(**limits)).run("Do it.")
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory
    return trajectory, model


def assert_every_call_is_answered(messages: tuple[Message, ...]) -> None:
    for number, message in enumerate(messages):
        if message.role == "assistant" and message.tool_calls:
            (kept,) = message.tool_calls
            answer = messages[number + 1]
            assert (answer.role, answer.tool_call_id) == ("tool", kept.id)
        elif message.role == "tool":
            assert messages[number - 1].tool_calls


async def test_a_call_is_answered_by_a_tool_message_with_its_id() -> None:
    three = (call(), call('{"command": "rm x"}', id="c2"), call(id="c3"))
    replies = [Reply(content="I look.", reasoning="hm", tool_calls=three), submit()]
    trajectory, model = await run(replies, [CommandResult("file\n", 0), DONE])
    assert trajectory.outcome is Outcome.SUBMITTED
    assert "".join(message.role[0] for message in trajectory.messages) == "suatat"
    assert trajectory.messages[2] == Message(role="assistant", content="I look.", reasoning="hm", tool_calls=three[:1])
    assert trajectory.messages[3].tool_call_id == "c1"
    assert trajectory.messages[3].content.endswith("file\n\n(exit_code=0)")
    assert_every_call_is_answered(trajectory.messages)
    assert [request.tools for request in model.requests] == [tuple(PROTOCOL.tools)] * 2
    assert trajectory.warnings == {"extra_tool_calls": 1}
    assert trajectory.steps[0].actions == ("ls",)


async def test_a_refused_call_leaves_a_reply_without_calls_and_a_user_message() -> None:
    bad = Reply(content="Hm.", tool_calls=(call("{}"), call(id="c2")))
    trajectory, _ = await run([bad, "no call at all", submit()], [DONE])
    assert "".join(message.role[0] for message in trajectory.messages) == "suauauat"
    assert trajectory.messages[2] == Message(role="assistant", content="Hm.")
    assert "The arguments need 'command'" in trajectory.messages[3].content
    assert_every_call_is_answered(trajectory.messages)
    assert trajectory.warnings == {
        "format_error:missing_field": 1,
        "extra_tool_calls": 1,
        "format_error:no_tool_call": 1,
    }
    assert trajectory.steps[0].reply == bad


async def test_a_call_of_a_cut_reply_is_never_run() -> None:
    cut = Reply(content="", tool_calls=(call(),), finish_reason="tool_calls", cut=True)
    trajectory, _ = await run([cut, submit()], [DONE])
    assert [step.actions for step in trajectory.steps] == [(), (SUBMIT_COMMAND,)]
    assert trajectory.steps[0].format_error == "reply_cut"
    assert trajectory.messages[2].tool_calls == ()
    assert_every_call_is_answered(trajectory.messages)


async def test_a_repaired_call_is_sent_back_as_an_object() -> None:
    twice = Reply(content="", tool_calls=(call(json.dumps(LS)),))
    trajectory, model = await run([twice, submit()], [CommandResult("", 0), DONE])
    (kept,) = model.requests[1].messages[2].tool_calls
    assert json.loads(kept.arguments) == {"command": "ls"}
    assert trajectory.steps[0].reply == twice
    assert trajectory.messages[3].content.endswith("(no output)\n\n(exit_code=0)")
