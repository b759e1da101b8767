"""Parts of the prompt after the instruction: MCP servers and skills, worded like Harbor's for Terminus-2."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tbench.tasks.format import McpServer
from tbench.tasks.task import Task

_HEADING = "\n\nMCP Servers:\nThe following MCP servers are available for this task.\n"
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---", re.DOTALL)


def instruction_with_servers(task: Task) -> str:
    """Return the task's instruction followed by its MCP servers. Raises TrialError(task_changed)."""
    servers = task.file.environment.mcp_servers
    return task.instruction + (_HEADING + "".join(map(_server_line, servers)) if servers else "")


def _server_line(server: McpServer) -> str:
    if server.transport == "stdio":
        return f"- {server.name}: stdio transport, command: {server.command} {' '.join(server.args)}\n"
    return f"- {server.name}: {server.transport} transport, url: {server.url}\n"


def skills_block(files: Mapping[str, str]) -> str:
    """Return a block that lists skills, given their SKILL.md by path; empty if none has name and description."""
    known = [(path, front) for path, text in files.items() if (front := _front_matter(text)) is not None]
    if not known:
        return ""
    # Imported here because few tasks have skills.
    from xml.etree import ElementTree

    root = ElementTree.Element("available_skills")
    for path, (name, description) in known:
        skill = ElementTree.SubElement(root, "skill")
        for part, text in {"name": name, "description": description, "location": path}.items():
            ElementTree.SubElement(skill, part).text = text
    ElementTree.indent(root, space="  ")
    return "\n" + ElementTree.tostring(root, encoding="unicode")


def _front_matter(text: str) -> tuple[str, str] | None:
    """Return name and description from the front matter of a SKILL.md; None if one is missing."""
    if (found := _FRONT_MATTER.match(text)) is None:
        return None
    import yaml

    try:
        values = yaml.safe_load(found[1])
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    name, description = values.get("name"), values.get("description")
    are_texts = isinstance(name, str | int | float) and isinstance(description, str | int | float)
    return (str(name), str(description)) if are_texts else None
