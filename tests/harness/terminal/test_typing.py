"""keyboard: a command and its input in one string work as if a person typed them while watching the screen."""

from __future__ import annotations

import re

import pytest
from terminals import LONG, body, opened, press, type_in, under_load

from harness.protocols.base import Keys, ScreenView
from harness.terminal import Terminal
from tbench.sandbox.docker.container import Container

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

PROMPT = re.compile(r"(?:root|asked)@[0-9a-f]{12}:\S*?([#$])(?= |$)", re.MULTILINE)
C_C, C_D, C_O, C_X, ESCAPE = "\x03", "\x04", "\x0f", "\x18", "\x1b"
MANY = "".join(f"line {number}\n" for number in range(200))

# What is typed, and what is new on the screen then. Each prompt is shown as `#`.
SHELL_READS = {
    "read": (
        "read -p 'Name: ' n; echo \"hi <$n>\"\nBob\n",
        "# read -p 'Name: ' n; echo \"hi <$n>\"\nName: Bob\nhi <Bob>\n#",
    ),
    "read-with-an-editor": (
        'read -ep "Name: " x; echo "<$x>"\nBob\n',
        '# read -ep "Name: " x; echo "<$x>"\nName: Bob\n<Bob>\n#',
    ),
    "read-silently": ('read -sp Word: x; echo "<$x>"\nsecret\n', '# read -sp Word: x; echo "<$x>"\nWord:<secret>\n#'),
    "read-a-key": (
        "read -n1 -p '[y/n] ' x; echo \" <$x>\"\ny",
        "# read -n1 -p '[y/n] ' x; echo \" <$x>\"\n[y/n] y <y>\n#",
    ),
    "read-a-key-and-enter": (
        'read -n1 x; read y; echo; echo "<$x><$y>"\ny\necho after\n',
        '# read -n1 x; read y; echo; echo "<$x><$y>"\ny\n\n<y><>\n# echo after\nafter\n#',
    ),
    "several-reads": (
        'read a\nfirst\nread b; echo "$a $b"\nsecond\nread -r c\n\\third\necho "$c"\n',
        '# read a\nfirst\n# read b; echo "$a $b"\nsecond\nfirst second\n# read -r c\n\\third\n# echo "$c"\n\\third\n#',
    ),
    "read-in-a-loop": (
        f'while read x; do echo "<$x>"; done\na\nb\n{C_D}echo after\n',
        '# while read x; do echo "<$x>"; done\na\n<a>\nb\n<b>\n# echo after\nafter\n#',
    ),
    "read-in-a-function": (
        'f() {\n  read x\n  echo "<$x>"\n}\nf; f\n1\n2\n',
        '# f() {\n>   read x\n>   echo "<$x>"\n> }\n# f; f\n1\n<1>\n2\n<2>\n#',
    ),
    "mapfile": ("mapfile -n 2 x\na\nb\necho ${x[1]}\n", "# mapfile -n 2 x\na\nb\n# echo ${x[1]}\nb\n#"),
    "select": (
        "select x in a b; do echo got $x; break; done\n2\n",
        "# select x in a b; do echo got $x; break; done\n1) a\n2) b\n#? 2\ngot b\n#",
    ),
    "a-late-read": ('sleep 0.5; read x; echo "<$x>"\nlate\n', '# sleep 0.5; read x; echo "<$x>"\nlate\n<late>\n#'),
    "here-documents-between": (
        'cat <<E\none $((6 * 7))\nE\nread x; cat <<E\nmore\n<$x>\nE\nan answer\ncat <<"E" | head -1\n$x\nend\nE\n',
        "# cat <<E\n> one $((6 * 7))\n> E\none 42\n# read x; cat <<E\n> more\n> <$x>\n> E\nan answer\n"
        'more\n<an answer>\n# cat <<"E" | head -1\n> $x\n> end\n> E\n$x\n#',
    ),
    "carriage-returns": (
        'echo one\r\nread x; echo "<$x>"\r\nan answer\r\n',
        '# echo one\none\n# read x; echo "<$x>"\nan answer\n<an answer>\n#',
    ),
    "no-echo": (
        'stty -echo; read x; stty echo; echo "<$x>"\nunseen\n',
        '# stty -echo; read x; stty echo; echo "<$x>"\n<unseen>\n#',
    ),
    "a-prompt-after-it": (
        "set -o vi\nread x\nfoo\nset -o emacs; echo $x\n",
        "# set -o vi\n# read x\nfoo\n# set -o emacs; echo $x\nfoo\n#",
    ),
}
PROGRAM_READS = {
    "head": ("head -1\nfirst\necho next\n", "# head -1\nfirst\nfirst\n# echo next\nnext\n#"),
    "cat": (
        f"cat > /tmp/f\nfirst\n\tsecond\n\n{C_D}cat -A /tmp/f\n",
        "# cat > /tmp/f\nfirst\n        second\n\n# cat -A /tmp/f\nfirst$\n^Isecond$\n$\n#",
    ),
    "cat-without-a-last-newline": (
        f"cat > /tmp/f\nfirst\nsecond{C_D}{C_D}cat -A /tmp/f; echo\n",
        "# cat > /tmp/f\nfirst\nsecond# cat -A /tmp/f; echo\nfirst$\nsecond\n#",
    ),
    "an-interrupt": (f"cat\none\n{C_C}echo after\n", "# cat\none\none\n^C\n# echo after\nafter\n#"),
    "input": (
        "python3 -c \"print([input('a? '), input('b? ')])\"\none\n two\necho next\n",
        "# python3 -c \"print([input('a? '), input('b? ')])\"\na? one\nb?  two\n['one', ' two']\n# echo next\nnext\n#",
    ),
    "a-program-that-starts-late": (
        "python3 -c 'import time; time.sleep(0.5); print(input())'\nhello\n",
        "# python3 -c 'import time; time.sleep(0.5); print(input())'\nhello\nhello\n#",
    ),
    "a-program-that-throws-away-what-was-typed-ahead": (
        "python3 -c 'import getpass; print(getpass.getpass())'\nsecret\necho next\n",
        "# python3 -c 'import getpass; print(getpass.getpass())'\nPassword:\nsecret\n# echo next\nnext\n#",
    ),
    "raw": (
        "stty raw -echo; head -c 6 | od -An -c; stty sane; echo\nab\ncd\n",
        "# stty raw -echo; head -c 6 | od -An -c; stty sane; echo\n   a   b  \\r   c   d  \\r\n\n#",
    ),
    "a-prompt-of-python": (
        "python3 -q\nx = 6\nfor i in range(2):\n    print(i * x)\n\nexit(3)\necho $?\n",
        "# python3 -q\n>>> x = 6\n>>> for i in range(2):\n...     print(i * x)\n...\n0\n6\n"
        ">>> exit(3)\n# echo $?\n3\n#",
    ),
    "a-shell": (
        'bash\nread x\nan answer\necho "<$x>"\nexit 4\necho $?\n',
        '# bash\n# read x\nan answer\n# echo "<$x>"\n<an answer>\n# exit 4\nexit\n# echo $?\n4\n#',
    ),
    "passwd": (
        "passwd asked\nsecret\nsecret\necho next\n",
        "# passwd asked\nNew password:\nRetype new password:\npasswd: password updated successfully\n"
        "# echo next\nnext\n#",
    ),
    "sudo-and-su": (
        "su asked\nsudo -k id -un\nsecret\nsu -c 'id -un'\nsecret\nexit\n",
        "# su asked\n$ sudo -k id -un\n[sudo] password for asked:\nroot\n"
        "$ su -c 'id -un'\nPassword:\nroot\n$ exit\nexit\n#",
    ),
    "sudo-takes-a-while": (
        "su asked\nsudo -k sh -c 'sleep 0.7; id -un'\nsecret\necho next\nexit\n",
        "# su asked\n$ sudo -k sh -c 'sleep 0.7; id -un'\n[sudo] password for asked:\nroot\n"
        "$ echo next\nnext\n$ exit\nexit\n#",
    ),
    "a-terminal-within": (
        "script -qc 'sleep 0.7; read x; echo \"<$x>\"; sleep 0.7' /dev/null\nan answer\necho next\n",
        "# script -qc 'sleep 0.7; read x; echo \"<$x>\"; sleep 0.7' /dev/null\nan answer\n<an answer>\n"
        "# echo next\nnext\n#",
    ),
    "su-c": (
        "su asked -c 'head -1; read x; echo \"<$x>\"'\na line\nan answer\necho next\n",
        "# su asked -c 'head -1; read x; echo \"<$x>\"'\na line\na line\nan answer\n<an answer>\n# echo next\nnext\n#",
    ),
    "sudo-within-su-c": (
        "su asked -c 'sudo -kS id -un'\nsecret\necho next\n",
        "# su asked -c 'sudo -kS id -un'\n[sudo] password for asked:\nroot\n# echo next\nnext\n#",
    ),
    "sudo-s": (
        "su asked\nsudo -kSp Word: id -un\nsecret\nexit\n",
        "# su asked\n$ sudo -kSp Word: id -un\nWord:\nroot\n$ exit\nexit\n#",
    ),
}


def shown(view: ScreenView) -> str:
    assert view.new_output is not None
    return PROMPT.sub(r"\1", view.new_output)


@pytest.mark.parametrize("case", {**SHELL_READS, **PROGRAM_READS})
async def test_what_follows_a_command_is_its_input(desk: Terminal, case: str) -> None:
    typed, seen = {**SHELL_READS, **PROGRAM_READS}[case]
    assert shown(await type_in(desk, typed)) == seen


async def test_a_key_ends_the_input_of_a_command(desk: Terminal) -> None:
    await desk.send(Keys("cat > /tmp/f\none\ntwo\n", 0.3))
    assert await press(desk, "C-d")
    await desk.view()
    assert body(await type_in(desk, "cat /tmp/f\n")) == ["one", "two"]


async def test_input_that_comes_in_a_later_step_is_typed_when_it_is_read(desk: Terminal) -> None:
    await desk.send(Keys("sleep 0.3; head -1; read x; read y\n", 0.0))
    view = await type_in(desk, 'first\nsecond\nthird\necho "<$x><$y>"\n')
    assert shown(view).endswith('\nfirst\nfirst\nsecond\nthird\n# echo "<$x><$y>"\n<second><third>\n#')


@pytest.mark.parametrize("shell", ["bash", "zsh -f", "fish", "dash", "su - asked"])
async def test_input_is_read_though_there_was_no_time_to_wait_for_its_reader(desk: Terminal, shell: str) -> None:
    await type_in(desk, f"{shell}\n")
    for number in range(3):
        await desk.send(Keys(f"sh -c 'sleep 0.05; read x; echo \"<$x>\"'\nanswer-{number}\n", 0.0))
        assert f"\n<answer-{number}>\n" in (await type_in(desk, "echo after\n")).screen
    await type_in(desk, "exit\n")


@pytest.mark.parametrize(
    ("typed", "seen"),
    [
        (f"cat > /tmp/many\n{MANY}{C_D}cat /tmp/many\n", MANY),
        (f"cat > /tmp/many <<E\n{MANY}E\ncat /tmp/many\n", MANY),
        (f"head -n 200 > /tmp/many\n{MANY}cat /tmp/many\n", MANY),
        (f'mapfile -n 200 lines\n{MANY}printf %s "${{lines[@]}}"\n', MANY),
        (f'while read -r x; do echo "$x" >> /tmp/copy; done\n{MANY}{C_D}mv /tmp/copy /tmp/many; cat /tmp/many\n', MANY),
        ("".join(f"read x{n}\n{n}\n" for n in range(35)) + "echo $x7 $x34\n", "7 34\n"),
    ],
    ids=["cat", "here-document", "head", "mapfile", "read-in-a-loop", "reads"],
)
async def test_many_lines_of_input_are_read(desk: Terminal, typed: str, seen: str) -> None:
    assert f"\n{seen}" in PROMPT.sub(r"\1", str((await type_in(desk, typed)).new_output))


# -- full-screen programs ------------------------------------------------------------------------

FULL_SCREEN = {
    "nano": (f"nano /tmp/f\nfirst\nsecond{C_O}\n{C_X}", "first\nsecond"),
    "nano-asks": (f"nano /tmp/f\nfirst\nsecond{C_X}y\n", "first\nsecond"),
    "vim": (f"vim.tiny /tmp/f\nifirst\nsecond{ESCAPE}:wq\n", "first\nsecond"),
    "vim-and-more": (
        f"vim.tiny /tmp/f\nifirst{ESCAPE}:wq\necho second >> /tmp/f\n"
        f"vim.tiny /tmp/f\nGothird{ESCAPE}:wq\necho fourth >> /tmp/f\n",
        "first\nsecond\nthird\nfourth",
    ),
    "fzf": ("clear; printf '%s\\n' alpha beta gamma | fzf > /tmp/f\nbet\necho more >> /tmp/f\n", "beta\nmore"),
    "less": ("seq 300 | less\nGq\nread x; echo $x > /tmp/f\nan answer\n", "an answer"),
    "git": (
        "rm -rf /tmp/g; git init -q /tmp/g; cd /tmp/g; git config user.name a; git config user.email b\n"
        f"VISUAL=vim.tiny git commit -q --allow-empty\niA message{ESCAPE}:wq\n"
        "git log --format=%s > /tmp/f; cd /app\n",
        "A message",
    ),
}


@pytest.mark.parametrize("case", FULL_SCREEN)
async def test_a_full_screen_program_is_used_and_left_in_one_string(desk: Terminal, case: str) -> None:
    typed, written = FULL_SCREEN[case]
    await type_in(desk, "rm -f /tmp/f\n")
    await type_in(desk, typed)
    assert "\n".join(body(await type_in(desk, "cat /tmp/f\n"))) == written


@pytest.mark.parametrize(
    ("program", "leave", "is_full"),
    [
        ("vim.tiny /tmp/g", f"{ESCAPE}:q!\n", True),
        ("nano /tmp/g", f"{C_X}n", True),
        ("seq 300 | less", "q", True),
        ("cat", C_D, False),
        ("python3 -q", C_D, False),
        ("bash", "exit\n", False),
    ],
)
async def test_keys_for_a_full_screen_program_need_no_newline(
    desk: Terminal, program: str, leave: str, is_full: bool
) -> None:
    assert not (await desk.send(Keys("echo ", 0.1, shell_warning="no_newline"))).full_screen
    assert not (await desk.send(Keys(f"shown > /tmp/f; {program}\n", 1.0))).full_screen
    assert (await desk.send(Keys("j", 0.1, shell_warning="no_newline"))).full_screen is is_full
    await desk.send(Keys("\x7f", 0.1))
    assert (await desk.send(Keys(leave, LONG))).at_prompt
    assert not (await desk.send(Keys("cat /tmp/f\n", LONG, shell_warning="no_newline"))).full_screen


async def test_a_control_key_that_has_no_character_types_what_its_name_says(desk: Terminal) -> None:
    await desk.send(Keys("cat -A\n", 0.5))
    for key in ("C-;", "C-,", "C-.", "C-1", "C-=", "a"):
        await press(desk, key, 0.05)
    assert "\n;,.1=a$\n" in (await type_in(desk, f"\n{C_D}")).screen


@pytest.mark.slow
async def test_what_follows_a_command_is_its_input_on_a_busy_machine(equipped: Container) -> None:
    async with under_load(equipped), opened(equipped) as terminal:
        for _ in range(3):
            for typed, seen in {**SHELL_READS, **PROGRAM_READS}.values():
                assert shown(await type_in(terminal, typed)) == seen
            for typed, written in FULL_SCREEN.values():
                await type_in(terminal, "rm -f /tmp/f\n")
                await type_in(terminal, typed)
                assert "\n".join(body(await type_in(terminal, "cat /tmp/f\n"))) == written, typed
