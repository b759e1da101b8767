"""oversight: an agent is held, gets messages and decisions, and its trajectory records them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from harness.agent import MESSAGE_HEADING, Agent, Limits
from harness.errors import FormatError
from harness.fakes import FakeTerminal, ScriptedModel
from harness.model import Seeds
from harness.oversight import (
    Approval,
    Approved,
    Approver,
    BadApproval,
    Decision,
    Declined,
    Draft,
    Query,
    Rule,
    read_rules,
)
from harness.protocols.base import Action, ActionProtocol, Command, Keys, Parsed
from harness.protocols.bash import SUBMIT_COMMAND, BashTool
from harness.protocols.keystrokes_json import KeystrokesJson
from harness.trajectory import Outcome, Reply, ToolCall, Trajectory

LS = '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls\\n", "duration": 0.1}]}'
PWD = LS.replace("ls", "pwd")
CLAIM = '{"analysis": "a", "plan": "p", "commands": [], "task_complete": true}'


class Watcher:
    """An oversight with given messages and decisions by step; otherwise it does not intervene."""

    def __init__(
        self,
        said: dict[int, Sequence[str]] | None = None,
        decide: Callable[[Draft], Awaitable[Decision]] | None = None,
        hold_sec: float = 0.0,
    ) -> None:
        self._said, self._decide, self._hold_sec = said or {}, decide, hold_sec
        self.drafts: list[Draft] = []
        self.known: list[Reply] = []
        """Known replies, which are not queried again."""

    async def before_query(self, step: int) -> Sequence[str]:
        await asyncio.sleep(self._hold_sec)
        return self._said.get(step, ())

    async def reply(self, query: Query) -> Reply:
        return self.known.pop(0) if self.known else await query.ask()

    async def review(self, draft: Draft) -> Decision:
        self.drafts.append(draft)
        return draft.reply if self._decide is None else await self._decide(draft)


async def watched(
    script: Sequence[str | Reply],
    watcher: Watcher,
    *,
    protocol: ActionProtocol | None = None,
    timeout_sec: float | None = None,
    approval: Approval | None = None,
) -> tuple[Trajectory, ScriptedModel, FakeTerminal]:
    model, terminal = ScriptedModel(script), FakeTerminal(["$ ", "$ ls\nfile\n$ "])
    limits = Limits(timeout_sec=timeout_sec)
    agent = Agent(
        model,
        terminal,
        protocol or KeystrokesJson(),
        limits,
        seeds=Seeds("task", 0),
        oversight=watcher,
        approval=approval,
    )
    return await agent.run("Make the tests pass."), model, terminal


async def test_an_agent_that_is_only_watched_does_what_it_would_do_anyway() -> None:
    watcher = Watcher()
    trajectory, _, _ = await watched([LS, CLAIM, CLAIM], watcher)
    alone = await Agent(
        ScriptedModel([LS, CLAIM, CLAIM]), FakeTerminal(["$ ", "$ ls\nfile\n$ "]), KeystrokesJson(), Limits()
    ).run("Make the tests pass.")
    assert trajectory.messages == alone.messages
    assert trajectory.interventions == ()
    assert [draft.step for draft in watcher.drafts] == [1, 2, 3]


async def test_the_time_for_which_an_agent_is_held_is_charged_to_no_one() -> None:
    trajectory, _, _ = await watched([LS, CLAIM, CLAIM], Watcher(hold_sec=0.2), timeout_sec=0.3)
    assert trajectory.outcome is Outcome.SUBMITTED
    assert trajectory.waited_sec >= 0.6


async def test_a_message_stands_under_the_observation_that_the_model_reads_next() -> None:
    trajectory, model, _ = await watched([LS, CLAIM, CLAIM], Watcher({2: ["Use the file.", "Hurry."]}))
    before, now = model.requests[0].messages, model.requests[1].messages
    assert [message.role for message in now] == ["user", "assistant", "user"]
    assert now[-1].content.endswith(f"{MESSAGE_HEADING}\nUse the file.\n\n{MESSAGE_HEADING}\nHurry.")
    assert "file" in trajectory.steps[0].observation
    assert MESSAGE_HEADING not in trajectory.steps[0].observation
    assert [(each.step, each.kind, each.text) for each in trajectory.interventions] == [
        (2, "message", "Use the file."),
        (2, "message", "Hurry."),
    ]
    assert model.requests[2].messages[: len(before)] == before


async def test_a_message_before_the_first_step_stands_under_the_instruction() -> None:
    _, model, _ = await watched([CLAIM, CLAIM], Watcher({1: ["Look first."]}))
    (first,) = model.requests[0].messages
    assert "Make the tests pass." in first.content
    assert first.content.endswith("Look first.")


async def test_a_refusal_is_what_the_model_reads_and_nothing_is_typed() -> None:
    async def decide(draft: Draft) -> Reply | Declined:
        return Declined("This was refused.") if draft.step == 1 else draft.reply

    trajectory, model, terminal = await watched([LS, CLAIM, CLAIM], Watcher(decide=decide))
    assert terminal.typed == []
    assert trajectory.steps[0].observation == "This was refused."
    assert trajectory.steps[0].actions == ()
    assert model.requests[1].messages[-1].content == "This was refused."
    assert [(each.kind, each.text) for each in trajectory.interventions] == [("refused", "This was refused.")]


async def test_the_call_of_a_tool_that_is_refused_is_answered() -> None:
    async def decide(draft: Draft) -> Reply | Declined:
        assert not isinstance(draft.parsed, FormatError)
        return Declined("No.")

    call = ToolCall(id="c1", name="bash", arguments='{"command": "rm -r /"}')
    script = [Reply(content="", tool_calls=(call,))]
    model = ScriptedModel(script)
    limits = Limits(steps=1)
    agent = Agent(model, FakeTerminal(), BashTool(), limits, oversight=Watcher(decide=decide))
    trajectory = await agent.run("Task.")
    assert trajectory.messages[-1].role == "tool"
    assert trajectory.messages[-1].tool_call_id == "c1"
    assert trajectory.messages[-1].content == "No."


async def test_another_reply_is_followed_in_the_place_of_the_model_s() -> None:
    async def decide(draft: Draft) -> Reply | Declined:
        return draft.reply.model_copy(update={"content": PWD}) if draft.step == 1 else draft.reply

    trajectory, model, terminal = await watched([LS, CLAIM, CLAIM], Watcher(decide=decide))
    assert terminal.typed == [Keys("pwd\n", 0.1)]
    assert trajectory.steps[0].reply.content == PWD
    assert model.requests[1].messages[1].content == PWD
    assert [(each.step, each.kind, each.text) for each in trajectory.interventions] == [(1, "changed", LS)]


async def test_another_sample_is_asked_for_with_a_seed_and_its_tokens_count() -> None:
    async def decide(draft: Draft) -> Reply | Declined:
        return await draft.sample(77, None) if draft.step == 1 else draft.reply

    trajectory, model, terminal = await watched([LS, PWD, CLAIM, CLAIM], Watcher(decide=decide))
    assert terminal.typed == [Keys("pwd\n", 0.1)]
    assert model.requests[1].seed == 77
    assert model.requests[1].messages == model.requests[0].messages
    assert trajectory.outcome is Outcome.SUBMITTED


async def test_a_reply_of_bad_form_can_be_mended() -> None:
    async def decide(draft: Draft) -> Reply | Declined:
        if isinstance(draft.parsed, FormatError):
            return draft.reply.model_copy(update={"content": LS})
        return draft.reply

    trajectory, _, terminal = await watched(["no form at all", CLAIM, CLAIM], Watcher(decide=decide))
    assert terminal.typed == [Keys("ls\n", 0.1)]
    assert trajectory.steps[0].format_error is None


async def test_a_reply_that_is_known_is_followed_without_the_model_being_asked() -> None:
    watcher = Watcher()
    watcher.known = [Reply(content=LS)]
    trajectory, model, terminal = await watched([CLAIM, CLAIM], watcher)
    assert len(model.requests) == 2
    assert len(terminal.typed) == 1
    assert [step.reply.content for step in trajectory.steps] == [LS, CLAIM, CLAIM]


async def test_a_refused_reply_of_bad_form_is_answered_with_the_refusal() -> None:
    async def decide(draft: Draft) -> Decision:
        return Declined("Enough of that.") if draft.step == 1 else draft.reply

    trajectory, _, _ = await watched(["nonsense", CLAIM, CLAIM], Watcher(decide=decide))
    assert trajectory.steps[0].observation == "Enough of that."
    assert trajectory.warnings == {}


# -- approval ------------------------------------------------------------------------------------------


def rules(*texts: str, asks: bool = False) -> Approval:
    return Approval(asks, tuple(Rule(text, re.compile(text)) for text in texts))


async def test_what_a_rule_allows_is_done_and_the_rest_is_refused_without_anybody() -> None:
    watcher = Watcher()
    trajectory, _, terminal = await watched([LS, PWD, CLAIM, CLAIM], watcher, approval=rules("ls( .*)?"))
    assert [keys.keystrokes for keys in terminal.typed if isinstance(keys, Keys)] == ["ls\n"]
    assert trajectory.steps[1].observation.startswith("None of this was done, because it is not allowed here:\n  pwd\n")
    assert "ls( .*)?" in trajectory.steps[1].observation
    assert [draft.needs_approval for draft in watcher.drafts] == [False, True, False, False]
    assert [(each.step, each.kind) for each in trajectory.interventions] == [(1, "approved"), (2, "refused")]
    assert trajectory.interventions[0].text == "by rule: ls( .*)?"
    assert trajectory.outcome is Outcome.SUBMITTED


async def test_what_no_rule_allows_is_done_once_someone_says_so() -> None:
    async def decide(draft: Draft) -> Decision:
        return Approved(draft.reply, "by a person") if draft.needs_approval else draft.reply

    trajectory, _, terminal = await watched([LS, CLAIM, CLAIM], Watcher(decide=decide), approval=rules(asks=True))
    assert len(terminal.typed) == 1
    assert [(each.kind, each.text) for each in trajectory.interventions] == [("approved", "by a person")]


async def test_a_reply_that_a_person_has_put_in_its_place_needs_no_rule() -> None:
    async def decide(draft: Draft) -> Decision:
        return Reply(content=PWD) if draft.step == 1 else draft.reply

    trajectory, _, terminal = await watched([LS, CLAIM, CLAIM], Watcher(decide=decide), approval=rules("ls"))
    assert [keys.keystrokes for keys in terminal.typed if isinstance(keys, Keys)] == ["pwd\n"]
    assert [each.kind for each in trajectory.interventions] == ["changed"]


# approval: which commands, lines and keys rules allow.


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rules.txt"
    path.write_text("# reading\nls( -\\w+)*\ncat [\\w./]+\n\nC-c\nEnter\n")
    return path


@pytest.fixture
def approver(file: Path) -> Approver:
    return Approver(Approval.read(f"allowlist={file}"))


def typed(*texts: str) -> Parsed:
    return Parsed(tuple(Keys(text, 0.1) for text in texts))


def run(command: str) -> Parsed:
    return Parsed((Command(command),))


@pytest.mark.parametrize(
    ("setting", "asks", "number"), [("ask", True, 0), ("allowlist={}", False, 4), ("ask,allowlist={}", True, 4)]
)
def test_a_setting_says_who_approves(file: Path, setting: str, asks: bool, number: int) -> None:
    approval = Approval.read(setting.format(file))
    assert (approval.asks, len(approval.rules)) == (asks, number)


@pytest.mark.parametrize("setting", ["", "yes", "ask,", "ask,ls", "allowlist=", "allowlist"])
def test_a_setting_that_is_invalid_is_refused(setting: str) -> None:
    with pytest.raises(BadApproval, match="write ask, allowlist=FILE, or ask,allowlist=FILE"):
        Approval.read(setting)


def test_files_that_cannot_be_used_are_reported_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(BadApproval, match=r"missing\.txt: No such file or directory"):
        read_rules(tmp_path / "missing.txt")
    (bad := tmp_path / "bad.txt").write_text("ls\n(\n")
    with pytest.raises(BadApproval, match=r"bad.txt:2: \(: not a regular expression"):
        read_rules(bad)
    (empty := tmp_path / "empty.txt").write_text("# nothing\n")
    with pytest.raises(BadApproval, match="no rules"):
        read_rules(empty)
    (binary := tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(BadApproval, match="not UTF-8 text"):
        read_rules(binary)


def test_a_fingerprint_is_of_the_rules_and_not_of_their_file(file: Path, tmp_path: Path) -> None:
    (copy := tmp_path / "copy.txt").write_text(file.read_text().replace("# reading\n", ""))
    assert Approval.read(f"allowlist={copy}").fingerprint == Approval.read(f"allowlist={file}").fingerprint
    assert Approval.read(f"ask,allowlist={copy}").fingerprint.startswith("ask,allowlist:")
    assert Approval.read("ask").fingerprint == "ask"


@pytest.mark.parametrize(
    ("parsed", "refused"),
    [
        (run("ls -l"), ()),
        (run("ls -l\n"), ()),
        (run("ls -l; rm -r x"), ("ls -l; rm -r x",)),
        (run("ls\nrm -r x"), ("ls\nrm -r x",)),
        (typed("ls -l\n"), ()),
        (typed("ls", " -l", "\n"), ()),
        (typed("ls", "; rm x\n"), ("ls; rm x",)),
        (typed("ls\nrm x\n"), ("rm x",)),
        (typed("ls\r\ncat a\r"), ()),
        (typed("ls"), ()),
        (typed("rm"), ("rm",)),
        (typed("\n"), ()),
        (typed(""), ()),
        (typed("cat a\x7f\x7f\x7f\n"), ("cat a\x7f\x7f\x7f",)),
        (typed("ls\x1b"), ("ls\x1b",)),
        (Parsed((Keys("", 0.1, key="C-c"),)), ()),
        (Parsed((Keys("", 0.1, key="C-d"),)), ("C-d",)),
        (Parsed((Keys("rm x", 0.1), Keys("", 0.1, key="C-c"), Keys("ls\n", 0.1))), ()),
        (Parsed((), complete=True), ()),
        (Parsed((Command(SUBMIT_COMMAND),), complete=True), ()),
    ],
)
def test_a_command_and_a_typed_line_count_as_a_whole(
    approver: Approver, parsed: Parsed, refused: tuple[str, ...]
) -> None:
    assert approver.find_refused(parsed) == refused


def test_a_line_goes_on_where_an_earlier_reply_has_left_it(approver: Approver) -> None:
    approver.note_followed(typed("ls -l"))
    assert approver.find_refused(typed("; rm x\n")) == ("ls -l; rm x",)
    assert approver.find_refused(typed("a\n")) == ()
    approver.note_followed(typed("a\n"))
    assert approver.find_refused(typed("; rm x\n")) == ("; rm x",)


def test_the_rules_that_allow_a_reply_are_reported_once_each(approver: Approver) -> None:
    actions: tuple[Action, ...] = (Command("ls"), Command("cat a"), Command("ls -l"))
    assert approver.rules_for(Parsed(actions)) == ("ls( -\\w+)*", "cat [\\w./]+")


def test_the_model_reads_what_was_refused_and_what_is_allowed(file: Path) -> None:
    words = Approval.read(f"allowlist={file}").refusal_text(["rm x"])
    assert "  rm x\n" in words
    assert "  cat [\\w./]+" in words
    assert "nobody approved it" in Approval.read("ask").refusal_text(["rm x"])
