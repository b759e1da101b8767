"""The agent's terminal: a tmux session over one byte stream."""

from harness.limits import Settling
from harness.terminal.session import Settled, Terminal
from harness.terminal.spec import COLUMNS, HISTORY_LINES, ROWS, TerminalSpec
from harness.terminal.tap import DrawnScreen, Tap

__all__ = ["COLUMNS", "HISTORY_LINES", "ROWS", "DrawnScreen", "Settled", "Settling", "Tap", "Terminal", "TerminalSpec"]
