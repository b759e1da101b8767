"""bash-block: reasoning, then exactly one fenced bash block per reply. The format of mini-swe-agent v1.

A block is ended by the first line that is its fence and nothing else, so a command that needs such a
line stands between longer fences. A block with the start of another one inside is refused: it was
closed too early, and half a heredoc would hang the shell.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.errors import FormatError
from harness.protocols.base import Parsed
from harness.protocols.bash import BashProtocol, block_oddities, check_block, one_command
from harness.protocols.fences import SHELL, Block, find_blocks, whole_spans
from harness.text import strip_thinking
from harness.trajectory import ToolCall


class BashBlock(BashProtocol):
    """The only bash block of a reply is its command."""

    name = "bash-block"

    def parse(self, content: str, tool_calls: Sequence[ToolCall] = ()) -> Parsed:
        """The command of the only bash block. Raises FormatError."""
        answer = strip_thinking(content, whole_spans(find_blocks(content, SHELL)))
        block = _only_block(find_blocks(answer, SHELL))
        check_block(block)
        return one_command(block.command, block_oddities(block))


def _only_block(found: list[Block]) -> Block:
    """The reply's only `bash` block, or without one the only block of another shell's label. Raises FormatError."""
    blocks = [block for block in found if block.label == "bash"] or found
    if len(blocks) == 1:
        return blocks[0]
    kind = "several_blocks" if blocks else "no_block"
    raise FormatError(kind, f"Found {len(blocks)} bash blocks; exactly one is needed.")
