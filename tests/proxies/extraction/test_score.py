"""Requirements of the strict, extractable and syntactic levels; and that `bash -n` executes nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.protocols import load_protocol
from harness.trajectory import ToolCall
from tbench.errors import UsageError
from tbench.proxies.extraction.records import ReplyRecord
from tbench.proxies.extraction.score import MAX_COMMAND_BYTES, BashSyntax, Levels, read_levels

BASH = BashSyntax()
THINKING_BASH = load_protocol("thinking-bash")


def levels(content: str | None, protocol: str = "thinking-bash", **more: object) -> Levels:
    record = ReplyRecord.model_validate({"task": "t", "seed": 0, "content": content, **more})
    return read_levels(record, load_protocol(protocol), BASH)


def three(found: Levels) -> tuple[bool, bool, bool]:
    return found.strict, found.extractable, found.syntactic


STRICT = "<thinking>a</thinking>\n```bash\n%s\n```"


@pytest.mark.parametrize(
    ("content", "expected", "problem"),
    [
        (STRICT % "ls -la", (True, True, True), ""),
        (STRICT % "if true; then", (True, True, False), "syntax: "),
        (STRICT % "echo 'a", (True, True, False), "syntax: "),
        (STRICT % " ", (True, False, False), "empty_block"),
        ("```sh\nls\n```", (False, True, True), ""),
        ("Sure:\n```\nls\n```\nDone.", (False, True, True), ""),
        ("<thinking>a</thinking>\n```python\nls\n```", (False, False, False), "no_block"),
        ("<thinking>a\n```bash\nls\n```", (False, False, False), "unclosed_thinking"),
        ("<thinking>a</thinking>\n```bash\nls", (False, False, False), "unclosed_block"),
        ("ls -la", (False, False, False), "no_block"),
        ("", (False, False, False), "empty_reply"),
        (" \n", (False, False, False), "empty_reply"),
    ],
)
def test_the_levels_of_a_thinking_bash_reply(content: str, expected: tuple[bool, ...], problem: str) -> None:
    found = levels(content)
    assert three(found) == expected
    assert found.problem.startswith(problem) and bool(found.problem) == bool(problem)
    assert (found.command is not None) == found.extractable


def test_a_reply_that_never_came_fails_all_three() -> None:
    assert read_levels(None, THINKING_BASH, BASH) == Levels(problem="no_reply")
    assert levels(None, error="refused: HTTP 400") == Levels(problem="refused: HTTP 400")


def test_of_other_protocols_strict_is_without_a_warning() -> None:
    assert three(levels("Look.\n\n```bash\nls\n```", "bash-block")) == (True, True, True)
    assert three(levels("Look.\n\n```sh\nls\n```", "bash-block")) == (False, True, True)
    keys = {"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls |\n", "duration": 0.1}]}
    assert three(levels(json.dumps(keys), "keystrokes-json")) == (True, True, False)
    keys["commands"] = [{"keystrokes": "C-c"}, {"keystrokes": ""}]
    assert levels(json.dumps(keys), "keystrokes-json").problem == "no_command"
    call = ToolCall(id="1", name="bash", arguments='{"command": "ls"}')
    assert three(levels("", "bash-tool", tool_calls=[call])) == (True, True, True)


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(["<thinking>", "</thinking>", "```bash\n", "\n```", "ls", "\x00", "'", "\ud800"])).map(
        "".join
    )
)
def test_any_reply_has_levels_and_only_an_extractable_one_is_syntactic(content: str) -> None:
    record = ReplyRecord.model_construct(task="t", seed=0, content=content, tool_calls=(), error=None)
    found = read_levels(record, THINKING_BASH, BASH)
    assert found.extractable or not found.syntactic


TOUCHING = [
    "touch {}", "$(touch {})", "`touch {}`", "echo \"$(touch {})\"", "cat <<E\n$(touch {})\nE", "echo >{}", "exec >{}",
    "a[$(touch {})]=1", "(( a[$(touch {})] ))", "[[ -v a[$(touch {})] ]]", "cat <(touch {})", "coproc touch {}",
    "set +n\ntouch {}", "set +o noexec; touch {}", "trap 'touch {}' EXIT DEBUG ERR", "eval 'touch {}'",
    "PS4='$(touch {})'; set -x; :", "alias ls='touch {}'\nls", "f() {{ touch {}; }}; f",
    "for ((;;)); do touch {}; done",
    "source /dev/stdin <<< 'touch {}'", "PROMPT_COMMAND='touch {}'", "!touch {}", "$((a[$(touch {})]))",
    "declare -i x='a[$(touch {})]'", "bash -c 'touch {}'", "shopt -u noexec; touch {}", "#!/bin/sh\ntouch {}",
]  # fmt: skip


@pytest.mark.parametrize("command", TOUCHING)
def test_checking_a_command_executes_nothing_of_it(command: str, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    BashSyntax().check(command.format(witness))
    assert list(tmp_path.iterdir()) == []


def test_these_commands_would_leave_a_witness_if_they_were_executed(tmp_path: Path) -> None:
    """The assumption of the test above, checked with its first case."""
    import subprocess

    subprocess.run(["bash"], input=TOUCHING[0].format(tmp_path / "witness").encode(), check=True)
    assert (tmp_path / "witness").exists()


def test_nothing_of_the_environment_reaches_the_bash_that_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    startup = tmp_path / "startup"
    startup.write_text(f"touch {tmp_path}/witness\n")
    for name in ("BASH_ENV", "ENV"):
        monkeypatch.setenv(name, str(startup))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".bashrc").write_text(startup.read_text())
    monkeypatch.setenv("SHELLOPTS", "xtrace")
    monkeypatch.setenv("PS4", f"$(touch {tmp_path}/witness)")
    assert BashSyntax().check("ls").accepted
    assert not (tmp_path / "witness").exists()


def test_what_bash_is_not_asked_about_is_not_accepted() -> None:
    assert BASH.check("ls\0").complaint == "a NUL character"
    assert BASH.check("x" * (MAX_COMMAND_BYTES + 1)).complaint.startswith("longer than")
    assert not BASH.check("$(" * 20_000).accepted


def test_a_bash_that_does_not_end_is_cut_short(tmp_path: Path) -> None:
    slow = tmp_path / "bash"
    slow.write_text('#!/bin/sh\n[ "$1" = --version ] && { echo v; exit; }\nexec sleep 60\n')
    slow.chmod(0o755)
    syntax = BashSyntax(str(slow), timeout_sec=0.3).check("ls")
    assert (syntax.accepted, syntax.complaint) == (False, "bash -n took longer than 0.3 s")


def test_a_machine_without_bash_is_reported() -> None:
    with pytest.raises(UsageError, match=r"/nowhere/bash: cannot be started"):
        BashSyntax("/nowhere/bash")
    assert shutil.which("bash") and "bash" in BASH.version
