"""Paths of tmux and its files, and the environment of the terminal's shell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.limits import ShellMode

COLUMNS, ROWS = 160, 40
HISTORY_LINES = 50_000

UNATTENDED: Mapping[str, str] = {
    # Pagers print their input.
    "PAGER": "cat",
    "MANPAGER": "cat",
    "GIT_PAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "LESS": "-FRX",  # an agent's own `less` prints a text of one screen and ends
    # No progress bars, no questions.
    "PIP_PROGRESS_BAR": "off",
    "TQDM_DISABLE": "1",
    "DEBIAN_FRONTEND": "noninteractive",
    "GIT_TERMINAL_PROMPT": "0",
    # Editors fail, with advice on what to do instead.
    "EDITOR": "/opt/tbench/share/no-editor",
    "VISUAL": "/opt/tbench/share/no-editor",
    "GIT_EDITOR": "/opt/tbench/share/no-editor",
}
"""Variables for shells whose commands are delivered, without a user to page through output or answer questions."""


@dataclass(frozen=True)
class TerminalSpec:
    """Paths of tmux and its files in the terminal's container, and settings of its shell."""

    tmux: str = "/opt/tbench/bin/tmux"
    config: str = "/opt/tbench/share/tmux.conf"
    socket: str = "/opt/tbench/run/tmux"
    """Socket of tmux; files whose names start with it belong to the terminal, too."""
    shell: Sequence[str] = ("/opt/tbench/bin/busybox", "sh", "/opt/tbench/share/shell")
    """The shell's command, of at least two words: tmux passes a single one to the login shell, which may be nologin."""
    attended: bool = True
    """Whether keys are typed into an ordinary interactive shell, with history expansion, pagers and editors. Otherwise
    commands are delivered, `!` is plain text, and `UNATTENDED` is set."""
    shell_mode: ShellMode = "persistent"
    """`persistent`: one shell runs all commands; `fresh`: each command has its own process, with EOF on its input, no
    terminal and the start directory."""
    idle_sec: float = 10.0
    """Seconds without output between two checks: a delivered command that waits for keys at both is ended."""
    probe: str = "/opt/tbench/bin/tty"
    """Program that inspects the pane's terminal from outside (images/tools/tty.c)."""
    environment: Mapping[str, str] = field(
        default_factory=lambda: {
            "TERM": "tmux-256color",
            "LOCPATH": "/opt/tbench/share/locale",
            "TERMINFO_DIRS": "/etc/terminfo:/lib/terminfo:/usr/share/terminfo:/opt/tbench/share/terminfo",
        }
    )

    @property
    def command_file(self) -> str:
        """Path of a delivered command's script; images/tools/share/shell uses this name."""
        return f"{self.socket}.command"

    def variables(self) -> dict[str, str]:
        """Return the environment of tmux and the shell."""
        unattended = {} if self.attended else {**UNATTENDED, "TBENCH_HISTORY_EXPANSION": "off"}
        return {**self.environment, **unattended}

    def argv(self) -> list[str]:
        """Return the control client's command, which attaches to the session, or creates it if missing."""
        # -D: a lost client must not stay attached and keep the pane waiting.
        session = ["new-session", "-A", "-D", "-s", "main", "-x", str(COLUMNS), "-y", str(ROWS), *self.shell]
        return [self.tmux, "-u", "-f", self.config, "-S", self.socket, "-C", *session]
