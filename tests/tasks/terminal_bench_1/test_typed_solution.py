"""solution.yaml as a script, or why it is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tbench.errors import TaskInvalid
from tbench.tasks.terminal_bench_1.typed_solution import script_of


def script(folder: Path, text: str) -> str:
    (folder / "solution.yaml").write_text(text)
    return script_of(folder / "solution.yaml")


def test_commands_become_lines(tmp_path: Path) -> None:
    text = (
        "- command: cd /app\n  min_timeout_sec: 0.5\n"
        "- command: |-\n    cat <<EOF > a\n    it's\n    EOF\n  block: true\n"
        "- command: ./serve &\n  min_timeout_sec: 2\n  append_enter: true\n"
    )
    assert script(tmp_path, text) == "#!/bin/bash\ncd /app\ncat <<EOF > a\nit's\nEOF\n./serve &\nsleep 2\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- command: ls\n- command: vim a.txt\n", "1.command: vim is worked with at the keyboard"),
        ("- command: C-c\n", "0.command: C-c is a key"),
        ("- command: Enter\n", "0.command: Enter is a key"),
        ("- command: y\n  append_enter: false\n", "0.command: 'y' is typed without Enter"),
        ("- command: /usr/bin/python3\n", "0.command: python3 is worked with at the keyboard"),
        ("commands: []\n", "it is a list of commands"),
        ("- min_timeout_sec: 1\n", "0.command: Field required"),
        ("- command: [a\n", "line 2: is no YAML"),
    ],
)
def test_what_needs_the_keyboard_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(TaskInvalid, match=words):
        script(tmp_path, text)
