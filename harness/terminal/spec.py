"""The places of tmux and its files, and the surroundings in which the terminal's shell runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.limits import ShellMode

COLUMNS, ROWS = 160, 40
HISTORY_LINES = 50_000

UNATTENDED: Mapping[str, str] = {
    # What would page its output prints it.
    "PAGER": "cat",
    "MANPAGER": "cat",
    "GIT_PAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "LESS": "-FRX",  # started by name, it leaves a text of one screen where it is
    # What would draw progress, or ask, does not.
    "PIP_PROGRESS_BAR": "off",
    "TQDM_DISABLE": "1",
    "DEBIAN_FRONTEND": "noninteractive",
    "GIT_TERMINAL_PROMPT": "0",
    # What would open an editor fails, and says what to do instead.
    "EDITOR": "/opt/tbench/share/no-editor",
    "VISUAL": "/opt/tbench/share/no-editor",
    "GIT_EDITOR": "/opt/tbench/share/no-editor",
}
"""Variables for shells whose commands are delivered: nobody is there to turn pages or to answer."""


@dataclass(frozen=True)
class TerminalSpec:
    """The places of tmux and its files, on the side where the terminal lives, and how its shell runs."""

    tmux: str = "/opt/tbench/bin/tmux"
    config: str = "/opt/tbench/share/tmux.conf"
    socket: str = "/opt/tbench/run/tmux"
    """The socket of tmux; files whose names begin like its own belong to the terminal, too."""
    shell: Sequence[str] = ("/opt/tbench/bin/busybox", "sh", "/opt/tbench/share/shell")
    """The shell's command, of at least two words: tmux hands a single one to the login shell, which may be nologin."""
    attended: bool = True
    """Whether keys are typed, so that the shell has what a person's has: history expansion, pagers, editors. Else
    commands are delivered: `!` is text, and `UNATTENDED` holds."""
    shell_mode: ShellMode = "persistent"
    """`persistent`: one shell runs all commands; `fresh`: each has a process of its own, with EOF on its input, no
    terminal and the start directory."""
    idle_sec: float = 10.0
    """Seconds without output between two looks: a delivered command that both see wait for keys is ended."""
    watcher: str = "/opt/tbench/bin/tty"
    """The program that looks at the pane's terminal from beside it (images/tools/tty.c)."""
    environment: Mapping[str, str] = field(
        default_factory=lambda: {
            "TERM": "tmux-256color",
            "LOCPATH": "/opt/tbench/share/locale",
            "TERMINFO_DIRS": "/etc/terminfo:/lib/terminfo:/usr/share/terminfo:/opt/tbench/share/terminfo",
        }
    )

    @property
    def command_file(self) -> str:
        """The script of a delivered command; images/tools/share/shell knows this name."""
        return f"{self.socket}.command"

    def variables(self) -> dict[str, str]:
        """The environment of tmux, and with it of the shell."""
        unattended = {} if self.attended else {**UNATTENDED, "TBENCH_HISTORY_EXPANSION": "off"}
        return {**self.environment, **unattended}

    def argv(self) -> list[str]:
        """The command of the control client, which attaches to the session, or makes it where there is none."""
        # -D: a client that lost its way must not stay attached and keep the pane waiting for it.
        session = ["new-session", "-A", "-D", "-s", "main", "-x", str(COLUMNS), "-y", str(ROWS), *self.shell]
        return [self.tmux, "-u", "-f", self.config, "-S", self.socket, "-C", *session]
