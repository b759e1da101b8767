"""Tells whether a shell script calls pytest, or only mentions or installs it. Pure: nothing is executed or expanded.

Understood are commands that run another: shells with -c, `python -m`, `uvx`, `uv run`, `timeout`, `sudo` and the like.
So are other scripts of the tests, `bash /tests/run-tests.sh`. Not understood: commands in variables (`$RUN`), and what
other files do (`make test`, `tox`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tbench.verify.shell_commands import Words, simple_commands

_ASSIGNMENT = re.compile(r"\w+(?:\[[^]]*\])?\+?=(?!=)")
_BEFORE_A_COMMAND = {"if", "then", "else", "elif", "do", "while", "until", "!", "{", "coproc"}
_PYTEST = re.compile(r"(?:pytest|py\.test)(?:-?3(?:\.\d+)?)?(?:[=@<>~!\[].*)?")
"""Names of the pytest command, also with the version that uvx and pipx take."""
_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*|\$.*")
"""Names of Python, or a variable: one that stands for a command and is followed by `-m pytest` is Python."""
_MODULE = re.compile(r"-[bBdEiIOPqsSuvx]*m(.*)|--module(?:=(.*))?")
_SHELL_TEXT = re.compile(r"-[A-Za-z]*c|--command")
_OF_THE_TESTS = re.compile(r"(?:/tests|\$TEST_DIR|\$\{TEST_DIR\})/(.+)")
_ONLY_ASKS = {"-h", "--help", "-V", "--version"}


@dataclass(frozen=True)
class _Launcher:
    """A program that runs the command it is given."""

    options: frozenset[str]
    """Options that take the next word as their argument."""
    operands: int = 0
    """Number of words before the command, besides options."""
    subcommands: tuple[Words, ...] = ([],)


def _launcher(options: str = "", operands: int = 0, subcommands: str = "") -> _Launcher:
    return _Launcher(frozenset(options.split()), operands, tuple(each.split() for each in subcommands.split(",")))


_UV = """-p --python -w --with --with-editable --with-requirements --from -c --constraint --constraints --overrides
    -b --build-constraints --directory --project --package --extra --no-extra --group --no-group --only-group
    --env-file --index --default-index -i --index-url --extra-index-url -f --find-links --index-strategy
    --keyring-provider -P --upgrade-package --reinstall-package --refresh-package -C --config-setting --cache-dir
    --config-file --python-platform --link-mode --resolution --prerelease --exclude-newer --color"""
_LAUNCHERS = {
    **dict.fromkeys(("nohup", "setsid", "command", "builtin", "unbuffer", "busybox"), _launcher()),
    **dict.fromkeys(("gosu", "su-exec", "taskset"), _launcher(operands=1)),
    **dict.fromkeys(("pdm", "rye", "poetry", "pipenv", "hatch"), _launcher("-C --directory -P -e", subcommands="run")),
    **dict.fromkeys(("conda", "mamba", "micromamba"), _launcher("-n --name -p --prefix --cwd", subcommands="run")),
    "time": _launcher("-f -o --format --output"),
    "exec": _launcher("-a"),
    "timeout": _launcher("-k --kill-after -s --signal", 1),
    "sudo": _launcher("-u -g -h -p -C -D -R -r -t -T -U --user --group --chdir"),
    "runuser": _launcher("-u --user -g --group"),
    "env": _launcher("-u --unset -C --chdir"),
    "nice": _launcher("-n --adjustment"),
    "ionice": _launcher("-c --class -n --classdata"),
    "stdbuf": _launcher("-i --input -o --output -e --error"),
    "chroot": _launcher(operands=1),
    "flock": _launcher("-w --timeout -E", 1),
    "xargs": _launcher("-a -d -E -I -L -n -P -s"),
    "xvfb-run": _launcher("-e -f -n -p -s -w --server-args --server-num --error-file"),
    "uvx": _launcher(_UV),
    "uv": _launcher(_UV, subcommands="run,tool run"),
    "pipx": _launcher("--spec --python --index-url -i --pip-args", subcommands="run"),
    "coverage": _launcher("--source --omit --include --rcfile --data-file --concurrency --context", subcommands="run"),
}
_PYTHON_OPTIONS = _launcher("-W -X --check-hash-based-pycs")
_SHELLS = {"bash", "sh", "dash", "ash", "zsh", "ksh", "su", "runuser", "script"}


def calls_pytest(script: str, beside: Mapping[str, str] | None = None) -> bool:
    """Whether some command of `script` runs tests with pytest, so that they are seen in its output or in a ctrf.json.

    A call whose output goes elsewhere (`pytest >log`, `$(pytest)`) leaves no trace, and counts with `--ctrf` only.
    `beside` has other scripts by their paths below /tests, of which those count that it runs.
    """
    others = beside or {}
    try:
        commands = [each for each in simple_commands(script) if each.is_shown or "--ctrf" in each.words]
        if any(_runs_pytest(each.words) for each in commands):
            return True
        run = {_script_run(each.words) for each in commands} & others.keys()
        rest = {name: text for name, text in others.items() if name not in run}
        return any(calls_pytest(others[name], rest) for name in run)
    except RecursionError:
        return False  # nobody writes that


def _script_run(words: Words) -> str:
    """The path below /tests of the script that a shell is given; empty for anything else."""
    words = _without_prefix(words)
    name = words[0].rpartition("/")[2] if words else ""
    if name not in _SHELLS | {"source", "."} or len(words) < 2:
        return ""
    found = _OF_THE_TESTS.fullmatch(words[1])
    return found[1] if found else ""


def _runs_pytest(words: Words) -> bool:
    words = _without_prefix(words)
    if not words:
        return False
    name, arguments = words[0].rpartition("/")[2], words[1:]
    if _PYTEST.fullmatch(name):
        return not _ONLY_ASKS & set(arguments)
    if name == "eval":
        return calls_pytest(" ".join(arguments))
    if name in _SHELLS and any(map(calls_pytest, _shell_texts(arguments))):
        return True
    if _PYTHON.fullmatch(name):
        return _python_runs_pytest(arguments)
    if name == "command" and arguments[:1] in (["-v"], ["-V"]):
        return False
    launcher = _LAUNCHERS.get(name)
    return launcher is not None and _runs_pytest(_launched(launcher, arguments))


def _without_prefix(words: Words) -> Words:
    """The words of a command without leading shell keywords and assignments."""
    at = 0
    while at < len(words):
        if words[at] == "function":
            at += 2
        elif words[at] in _BEFORE_A_COMMAND or _ASSIGNMENT.match(words[at]):
            at += 1
        else:
            break
    return words[at:]


def _shell_texts(arguments: Words) -> Words:
    """The scripts that a shell is given as one word, such as after `-c`."""
    texts = [text for option, text in pairwise(arguments) if _SHELL_TEXT.fullmatch(option)]
    return texts + [word.partition("=")[2] for word in arguments if word.startswith("--command=")]


def _python_runs_pytest(arguments: Words) -> bool:
    for at, word in enumerate(arguments):
        if word == "-c":
            return "pytest.main" in "".join(arguments[at + 1 : at + 2])
        if not word.startswith("-") or _MODULE.fullmatch(word):
            break
    return _runs_pytest(_behind_options(_PYTHON_OPTIONS, arguments))


def _launched(launcher: _Launcher, arguments: Words) -> Words:
    """The command that a launcher runs; empty where it does something else."""
    rest = _behind_options(launcher, arguments)
    for subcommand in launcher.subcommands:
        if rest[: len(subcommand)] == subcommand:
            return _behind_options(launcher, rest[len(subcommand) :])[launcher.operands :]
    return []


def _behind_options(launcher: _Launcher, words: Sequence[str]) -> Words:
    """The words from the first that is no option; a module that an option names takes its place."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "--":
            break
        if found := _MODULE.fullmatch(option):
            module = found[1] or found[2]
            return [module, *rest] if module else rest
        if option in launcher.options:
            del rest[:1]
    return rest
