"""The agent's terminal: a tmux session over one byte stream, typed into, waited for and read."""

from harness.terminal.screen import COLUMNS, HISTORY_LINES, ROWS
from harness.terminal.session import Settled, Settling, ShellMode, Terminal, TerminalSpec

__all__ = ["COLUMNS", "HISTORY_LINES", "ROWS", "Settled", "Settling", "ShellMode", "Terminal", "TerminalSpec"]
