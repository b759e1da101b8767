"""Parts of the prompt besides the instruction, word for word like Harbor's for Terminus-2."""

from __future__ import annotations

import re

import pytest
from conftest import MakeTask

from tbench.errors import TaskInvalid
from tbench.tasks.prompt_parts import instruction_with_servers, skills_block
from tbench.tasks.task import Task

SERVERS = """[[environment.mcp_servers]]
name = "files"
transport = "http"
url = "http://files:8000/mcp"
[[environment.mcp_servers]]
name = "events"
url = "http://events/sse"
[[environment.mcp_servers]]
name = "local"
transport = "stdio"
command = "serve"
args = ["--root", "/data"]
"""
GREETS = "---\nname: greet\ndescription: Says <hello> & more\n---\nDo it.\n"


def test_mcp_servers_follow_the_instruction(make_task: MakeTask) -> None:
    task = Task.read(make_task(toml=SERVERS, instruction="Do it.\n"))
    assert instruction_with_servers(task) == (
        "Do it.\n"
        "\n\nMCP Servers:\nThe following MCP servers are available for this task.\n"
        "- files: streamable-http transport, url: http://files:8000/mcp\n"
        "- events: sse transport, url: http://events/sse\n"
        "- local: stdio transport, command: serve --root /data\n"
    )


def test_without_servers_the_instruction_stands_alone(make_task: MakeTask) -> None:
    assert instruction_with_servers(Task.read(make_task(instruction="Do it.\n"))) == "Do it.\n"


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ("", "environment.mcp_servers.0: a server with transport 'sse' needs a url"),
        ("transport = 'stdio'", "environment.mcp_servers.0: a server with transport 'stdio' needs a command"),
        ("transport = 'pigeon'", "environment.mcp_servers.0.transport: "),
    ],
)
def test_a_server_that_cannot_be_reached_is_malformed(make_task: MakeTask, server: str, words: str) -> None:
    with pytest.raises(TaskInvalid, match=re.escape(words)):
        Task.read(make_task(toml=f"[[environment.mcp_servers]]\nname = 'm'\n{server}\n"))


def test_skills_are_reported_by_name_description_and_place() -> None:
    assert skills_block({"/skills/greet/SKILL.md": GREETS}) == (
        "\n<available_skills>\n  <skill>\n    <name>greet</name>\n"
        "    <description>Says &lt;hello&gt; &amp; more</description>\n"
        "    <location>/skills/greet/SKILL.md</location>\n  </skill>\n</available_skills>"
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "no front matter", "\n" + GREETS),
        *("---\nname: x\n---\n", "---\n- name\n---\n", "---\nname: [\n---\n"),
        "---\nname: {a: 1}\ndescription: d\n---\n",
    ],
)
def test_what_does_not_tell_both_is_no_skill(text: str) -> None:
    assert skills_block({"/skills/x/SKILL.md": text}) == ""
    both = skills_block({"/skills/x/SKILL.md": text, "/skills/y/SKILL.md": GREETS})
    assert both.count("<skill>") == 1 and "/skills/y/" in both
