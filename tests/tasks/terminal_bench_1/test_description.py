"""YAML of strangers: what is not valid YAML is named by line, and nothing in it can fill the memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tbench.errors import TaskInvalid
from tbench.tasks.files import TEXT_BYTES
from tbench.tasks.terminal_bench_1.description import read_yaml, solution_script

# solution.yaml as a script, or why it is none.


def script(folder: Path, text: str) -> str:
    (folder / "solution.yaml").write_text(text)
    return solution_script(folder / "solution.yaml")


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
        ("- command: ls\n- command: vim a.txt\n", "1.command: vim is an interactive program"),
        ("- command: C-c\n", "0.command: C-c is a key"),
        ("- command: Enter\n", "0.command: Enter is a key"),
        ("- command: y\n  append_enter: false\n", "0.command: 'y' is typed without Enter"),
        ("- command: /usr/bin/python3\n", "0.command: python3 is an interactive program"),
        ("commands: []\n", "must be a list of commands"),
        ("- min_timeout_sec: 1\n", "0.command: Field required"),
        ("- command: [a\n", "line 2: is not valid YAML"),
    ],
)
def test_what_needs_the_keyboard_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(TaskInvalid, match=words):
        script(tmp_path, text)


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


def test_plain_data_is_read(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text("a: &x [1, 2.5, yes]\nb: *x\nc: |\n  text\n")
    assert read_yaml(tmp_path / "task.yaml") == {"a": [1, 2.5, True], "b": [1, 2.5, True], "c": "text\n"}
    (tmp_path / "task.yaml").write_text("# nothing\n")
    assert read_yaml(tmp_path / "task.yaml") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: b\nc: [1\nd: 2\n", "line 3: is not valid YAML: "),
        ("a:\n\t- b\n", "line 2: is not valid YAML: "),
        ("a: *nowhere\n", "line 1: is not valid YAML: "),
        (
            "a: !!python/object/apply:os.system ['true']\n",
            "line 1: is not valid YAML: could not",
        ),
        ("a: !!bool perhaps\n", "has an invalid value: "),
        ("a: 2024-99-99\n", "has an invalid value: "),
        ("a: \x07\n", "is not valid YAML: "),
        ("a: &a [*a]\n", "line 1: an alias refers to a value that contains it"),
        ("[" * 20_000, "is nested too deeply"),
        (BOMB, "values, but at most 20,000 are allowed"),
        ("a" * TEXT_BYTES + "a", "at most 1.0 MB are allowed"),
    ],
    ids=["open", "tab", "alias", "code", "bool", "date", "bell", "circle", "deep", "bomb", "large"],
)
def test_what_cannot_be_used_is_named_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(text)
    with pytest.raises(TaskInvalid, match=words) as raised:
        read_yaml(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(TaskInvalid, match="not UTF-8 text"):
        read_yaml(tmp_path / "task.yaml")
