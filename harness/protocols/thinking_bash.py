"""thinking-bash: a `<thinking>` section, then a bash block, for conversations and for single requests.

The format of a small GRPO checkpoint; the system prompt is exactly its training prompt. The first block counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.errors import FormatError
from harness.model_text import mask_spans, strip_thinking
from harness.protocols.base import Parsed
from harness.protocols.bash import BashProtocol, as_block, block_oddities, check_block, one_command
from harness.protocols.reply_text import ANY, Block, find_blocks, whole_spans
from harness.trajectory import Reply, ToolCall

_OPEN, _CLOSE = "<thinking>", "</thinking>"
_STARTS_WITH_SECTION = re.compile(rf"\s*+{_OPEN}(?!{_CLOSE})")
_ANOTHER_SECTION = re.compile(rf"\s*+{_OPEN}")
_LABELS = {"bash", "sh", "shell", ""}


@dataclass(frozen=True)
class Extraction:
    """The command found in a reply."""

    command: str
    warnings: tuple[str, ...] = ()
    """Differences from the strict form, `kind: sentence` each."""


class ThinkingBash(BashProtocol):
    """Protocol thinking-bash: the command is the first shell block after the thinking."""

    name = "thinking-bash"
    mark = f"within {_OPEN}"

    def parse(self, content: str, tool_calls: Sequence[ToolCall] = ()) -> Parsed:
        """Extract the command of the first block. Raises FormatError."""
        extraction = extract(content)
        return one_command(extraction.command, list(extraction.warnings))

    def _write(self, thought: str, command: str) -> Reply:
        return Reply(content=f"{_OPEN}{thought}{_CLOSE}\n{as_block(command)}")


def extract(content: str) -> Extraction:
    """Find the first ```` ```bash|sh|shell|(none) ```` block after an optional thinking section. Raises FormatError.

    Blocks with other labels never count.
    """
    reply = strip_thinking(content, whole_spans(find_blocks(content, ANY)))
    end = _thinking_end(reply, find_blocks(reply, ANY))
    thinking, answer = reply[:end], reply[end:]
    blocks = _shell_blocks(find_blocks(answer, ANY))
    before = answer[: blocks[0].start] if blocks else answer
    if before.rfind(_OPEN) > before.rfind(_CLOSE):
        raise FormatError("unclosed_thinking", f"The {_OPEN} section is never closed by {_CLOSE}.")
    if not blocks:
        raise FormatError("no_block", f"Found 0 bash blocks after the {_OPEN} section; exactly one is needed.")
    check_block(blocks[0])
    return Extraction(blocks[0].command, tuple(_oddities(thinking, answer, blocks)))


def _shell_blocks(blocks: list[Block]) -> list[Block]:
    return [block for block in blocks if block.label.lower() in _LABELS]


def _thinking_end(reply: str, blocks: list[Block]) -> int:
    """Return the offset of the end of the thinking at the reply's front; 0 if none precedes the first block."""
    tags = mask_spans(reply, whole_spans(blocks))
    close = tags.find(_CLOSE)
    first_block = next((block.start for block in _shell_blocks(blocks)), len(reply))
    if close < 0 or tags.find(_OPEN, 0, close) > first_block:
        return 0
    end = close + len(_CLOSE)
    while another := _ANOTHER_SECTION.match(tags, end):
        close = tags.find(_CLOSE, another.end())
        if close < 0:
            break
        end = close + len(_CLOSE)
    return end


def _oddities(thinking: str, answer: str, blocks: list[Block]) -> Iterator[str]:
    block = blocks[0]
    if not _STARTS_WITH_SECTION.match(thinking):
        yield f"thinking_section: The reply should begin with {_OPEN}your reasoning{_CLOSE}."
    yield from block_oddities(block)
    if block.alone and answer[: block.start].strip():
        yield "extra_text: There is extra text before the bash block."
    if answer[block.end :].strip():
        yield "extra_text: There is extra text after the bash block."
    if len(blocks) > 1:
        yield f"several_blocks: Only the first of {len(blocks)} bash blocks counts."
