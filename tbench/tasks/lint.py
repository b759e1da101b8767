"""Static checks of a task's files for likely mistakes of its author. Nothing is started."""

from __future__ import annotations

import ast
import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import TypeGuard

from tbench.errors import TbenchError
from tbench.tasks.dockerfile import takes
from tbench.tasks.files import TEXT_BYTES, sha256_of
from tbench.tasks.task import Task

# The text files of a task, and the paths that its tests refer to

_MAX_FILES, _MAX_BYTES = 2_000, 32 << 20
"""Maximum number of files that are read per folder, and maximum bytes of all together."""
_WRITING_CALLS = {
    *("write_text", "write_bytes", "mkdir", "makedirs", "touch", "copy", "copyfile", "copytree", "move", "rename"),
    *("save", "unlink", "remove", "rmtree"),
}
_MAX_VALUES = 64
_DOWNLOADS = re.compile(r"\b(?:git clone|curl|wget)\b|^\s*ADD\s+\S*https?:", re.MULTILINE)
Known = Mapping[str, list[str]]
"""Possible paths by variable name."""
Texts = Mapping[str, str]
"""Text by path below the folder."""


class _TextConstant(ast.Constant):
    """A string constant, for type checkers."""

    value: str


@dataclass(frozen=True)
class Hint:
    """A likely mistake."""

    where: Path
    words: str
    kind: str = "looks wrong"


@dataclass(frozen=True)
class TaskTexts:
    """The text files of a task or task step, without binary and large files."""

    task: Task
    instruction: str
    tests: Texts
    environment: Texts
    solution: Texts
    names: frozenset[str]
    """Names of all files and folders in environment/."""

    @property
    def path(self) -> Path:
        return self.task.path

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders that may contain tests and solution: the task's and, with precedence, the step's."""
        step = self.task.step
        return (self.path,) if step is None else (self.path, self.path / "steps" / step.name)

    def test_path(self, name: str) -> Path:
        """Return the path of a test file, which need not exist."""
        places = [folder / "tests" / name for folder in reversed(self.folders)]
        return next((place for place in places if place.is_file()), places[0])

    @property
    def has_unknown_files(self) -> bool:
        """Whether the image contains downloaded files, whose names are unknown."""
        return any(_DOWNLOADS.search(text) for text in self.environment.values())

    def is_in_environment(self, name: str) -> bool:
        """Whether the environment contains or mentions a file of this name."""
        return name in self.names or any(name in text for text in self.environment.values())


def texts_of(task: Task) -> TaskTexts:
    """Read the text files of a task or of the view of a step. Raises OSError.

    A step's instruction is left out, because it and the tests may refer to files of other steps.
    """
    environment, names = task.path / "environment", set[str]()
    for _, folders, files in os.walk(environment):
        names.update(folders + files)
    texts = TaskTexts(task, _instruction(task), {}, dict(_texts(environment)), {}, frozenset(names))
    tests = {name: text for folder in texts.folders for name, text in _texts(folder / "tests")}
    return replace(texts, tests=tests, solution=dict(_texts(task.solve_script.parent)))


def _instruction(task: Task) -> str:
    try:
        return task.instruction if task.step is None else ""
    except TbenchError:
        return ""


def python_tests(texts: TaskTexts) -> Iterator[tuple[Path, str, ast.Module]]:
    """Iterate over the tests in Python that can be parsed."""
    for name, text in texts.tests.items():
        if name.endswith(".py"):
            with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                yield texts.test_path(name), text, ast.parse(text)


def expected_paths(python: str) -> list[tuple[str, int]]:
    """Return the absolute paths that a Python file refers to, also joined with `/`, and their line numbers.

    Paths that the file itself creates, by opening them for writing or passing them to a command, are left out. A file
    that cannot be parsed has no paths.
    """
    try:
        return list(_expected_paths(list(ast.walk(ast.parse(python)))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _expected_paths(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, int]]:
    known: dict[str, list[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known.setdefault(node.targets[0].id, []).extend(_paths(node.value, known))
    inside = {id(each) for node in nodes for each in (*_subexpressions(node), *_harmless_question(node))}
    own = {path for node in nodes for path in _written_paths(node, known)}
    given = [text for node in nodes for text in _command_texts(node, known)]
    for node in nodes:
        if isinstance(node, ast.Constant | ast.BinOp | ast.Call) and id(node) not in inside:
            for path in _paths(node, known)[:1]:
                name = path.rpartition("/")[2]
                if path.startswith("/") and path not in own and not any(path in each or name == each for each in given):
                    yield path, node.lineno


def _written_paths(node: ast.AST, known: Known) -> list[str]:
    """Return the paths that a call writes or removes."""
    if not isinstance(node, ast.Call):
        return []
    if isinstance(node.func, ast.Attribute) and node.func.attr in _WRITING_CALLS:
        return _paths(node.func.value, known) + [path for each in node.args[-1:] for path in _paths(each, known)]
    words = [each.value for each in [*node.args[1:], *(key.value for key in node.keywords)] if _is_text(each)]
    is_open = ast.unparse(node.func) == "open" and any(re.fullmatch(r"[wax][bt+]*", word) for word in words)
    return _paths(node.args[0], known) if is_open and node.args else []


def _command_texts(node: ast.AST, known: Known) -> Iterator[str]:
    """Yield command lines, and the arguments after program and script in a list."""
    if isinstance(node, ast.List):
        for each in node.elts[2:]:
            yield from _paths(each, known)
    if isinstance(node, ast.Call) and not _is_path(node):
        for each in [*node.args, *(key.value for key in node.keywords)]:
            if _is_text(each) and " " in each.value:
                yield each.value
            elif isinstance(each, ast.JoinedStr):
                yield "".join(_piece(piece, known) for piece in each.values)


def _piece(piece: ast.expr, known: Known) -> str:
    """Return a piece of an f-string; empty if unknown."""
    if isinstance(piece, ast.FormattedValue):
        return next(iter(_paths(piece.value, known)), "")
    return piece.value if _is_text(piece) else ""


def _is_text(node: ast.AST) -> TypeGuard[_TextConstant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _harmless_question(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the condition of an `if` that cannot end the test either way: the paths in it need not exist."""
    if isinstance(node, ast.If) and not any(_can_fail(each) for part in (node.body, node.orelse) for each in part):
        yield from ast.walk(node.test)


def _can_fail(statement: ast.stmt) -> bool:
    """Whether a statement can end a test as failed, or early."""
    return any(
        isinstance(node, ast.Assert | ast.Raise | ast.Return)
        or (isinstance(node, ast.Call) and re.search(r"\b(?:fail|skip|exit)$", ast.unparse(node.func)) is not None)
        for node in ast.walk(statement)
    )


def _subexpressions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield subexpressions that are no whole paths: parts of longer paths and f-strings, and docstrings."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        yield from (node.left, node.right)
        yield from ast.walk(node.left)
    elif isinstance(node, ast.JoinedStr | ast.Expr):
        yield from ast.walk(node) if isinstance(node, ast.JoinedStr) else (node.value,)
    elif isinstance(node, ast.Call) and _is_path(node):
        yield from node.args


def _paths(node: ast.expr, known: Known) -> list[str]:
    """Return the possible paths of an expression of constants and names."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.Name):
        return known.get(node.id, [])[:_MAX_VALUES]
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "str" and len(node.args) == 1:
        return _paths(node.args[0], known)
    if isinstance(node, ast.Call) and _is_path(node):
        parts = [_paths(each, known) for each in node.args]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        parts = [_paths(node.left, known), _paths(node.right, known)]
    else:
        return []
    return ["/".join(each) for each in islice(product(*parts), _MAX_VALUES)] if parts else []


def _is_path(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    return re.fullmatch(r"(?:pathlib\.)?(?:Pure)?(?:Posix)?Path|(?:os\.)?path\.join", name) is not None


def _texts(folder: Path) -> Iterator[tuple[str, str]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    left = _MAX_BYTES
    for path in files[:_MAX_FILES]:
        size = path.stat().st_size
        if size > min(TEXT_BYTES, left):
            continue
        left -= size
        data = path.read_bytes()
        if b"\0" not in data:
            yield path.relative_to(folder).as_posix(), data.decode("utf-8", "replace")


# Instruction and tests: paths and ports that only the tests mention, and files that only the instruction mentions

_WORK_DIRECTORIES = {"app", "home", "root", "srv", "opt", "data", "workspace", "work", "mnt", "var", "etc"}
"""Top-level directories in which agents work. Other absolute paths are often paths of URLs."""
_SYSTEM_PATHS = re.compile(
    r"/(?:.*/\.git$|etc/(?:passwd|shadow|group|hosts|resolv\.conf|os-release|ssl)|var/lib|root/\.(?:local|cache))\b"
)
_NAME = re.compile(r"(?:/[\w.@+-]+){2,}/?")
_ADDRESS = re.compile(r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0)(?::|[\"'],\s*)(\d{2,5})\b|\b[Pp]ort\s*=\s*(\d{2,5})\b")
_CODE = (".py", ".sh", ".js", ".ts", ".rb", ".go")
_SERVES = re.compile(r"\.bind\(|\.listen\(|HTTPServer|http\.server|serve_forever")
_EXAMPLE = re.compile(r"\bexample|\be\.g\.|\bsuch as\b|\bformat\b", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"(?:\{[\w ]+\}|<[\w ]+>)([\w.+-]{2,}\w)")
"""A name of which the instruction gives the end only: `{module}_pb2.py`."""
_FILE = re.compile(r"(?<![\w/.:-])(/(?:[\w@+-][\w.@+-]*/)*[\w@+-][\w@+.-]*\.[A-Za-z]\w{0,9})\b(?![\w/*{<-])")


def instruction_hints(texts: TaskTexts) -> Iterator[Hint]:
    """Yield likely mismatches between instruction and tests."""
    if not texts.instruction.strip():
        return
    yield from _unmentioned_paths(texts)
    yield from _unmentioned_ports(texts)
    yield from _unknown_files(texts)


def _unmentioned_paths(texts: TaskTexts) -> Iterator[Hint]:
    seen: set[str] = set()
    scripts = "\n".join(text for file, text in texts.tests.items() if file.endswith(".sh"))
    ends = tuple(_PLACEHOLDER.findall(texts.instruction))
    for file, text in texts.tests.items():
        for path, line in expected_paths(text) if file.endswith(".py") else ():
            name = path.rstrip("/").rpartition("/")[2]
            if path in seen or not is_agent_path(path) or (texts.has_unknown_files and path.count("/") > 2):
                continue
            seen.add(path)
            if name in scripts or name.endswith(ends):
                continue  # the script may create it, or the instruction leaves a part of its name open
            if name not in texts.instruction and not texts.is_in_environment(name):
                yield Hint(
                    texts.path / "tests" / file,
                    f"line {line}: {path}: not in the instruction, and not in the environment",
                )


def _unmentioned_ports(texts: TaskTexts) -> Iterator[Hint]:
    seen: set[str] = set()
    for file, text in texts.tests.items():
        if not file.endswith(_CODE) or _SERVES.search(text):
            continue
        for found in _ADDRESS.finditer(text):
            port = found[1] or found[2]
            pattern = re.compile(rf"(?<!\d){port}(?!\d)")
            if port in seen or pattern.search(texts.instruction):
                continue
            seen.add(port)
            if not any(pattern.search(each) for each in texts.environment.values()):
                line = text.count("\n", 0, found.start()) + 1
                yield Hint(
                    texts.path / "tests" / file, f"line {line}: port {port}: not in the instruction or the environment"
                )


def _unknown_files(texts: TaskTexts) -> Iterator[Hint]:
    others = [*texts.tests.values(), *texts.solution.values()]
    prose = "\n".join(line for line in texts.instruction.splitlines() if not _EXAMPLE.search(line))
    for path in dict.fromkeys(_FILE.findall(prose)):
        name = path.rpartition("/")[2]
        is_input = name.rpartition(".")[0] and is_agent_path(path)
        if is_input and not texts.is_in_environment(name) and not any(name in each for each in others):
            yield Hint(texts.path / "instruction.md", f"{path}: no such file in environment, tests or solution")


def is_agent_path(path: str) -> bool:
    """Whether a path is in a directory in which agents work."""
    return (
        _NAME.fullmatch(path) is not None and path.split("/")[1] in _WORK_DIRECTORIES and not _SYSTEM_PATHS.match(path)
    )


# Parts of tests and solution that the agent can see

_LEAST_BYTES = 40
"""Minimum size of compared files; smaller ones may be equal by chance."""
_MAX_LEAK_BYTES = 16 << 20
_REVEALING_NAMES = ("solve.sh", "solution.sh", "run-tests.sh")


def leak_hints(texts: TaskTexts) -> Iterator[Hint]:
    """Yield files of the environment that are part of tests or solution."""
    root = texts.path
    secret = {
        sha256_of(path): path
        for folder in texts.folders
        for path in _files(folder / "solution")
        if path.name in _REVEALING_NAMES or not _is_input(path.relative_to(folder / "solution"), texts)
    }
    secret |= {
        sha256_of(path): path for folder in texts.folders for path in _files(folder / "tests") if _is_test_script(path)
    }
    dockerfile = texts.environment.get("Dockerfile")
    for path in _files(root / "environment"):
        if dockerfile is not None and not takes(dockerfile, path.relative_to(root / "environment").as_posix()):
            continue
        if (same := secret.get(sha256_of(path))) is not None:
            yield Hint(path, f"is a copy of {same.relative_to(root)}, which the agent can read in the image")
        elif path.name in _REVEALING_NAMES:
            yield Hint(path, "is named like a solution or tests, and the agent can read it in the image")


def _is_input(path: Path, texts: TaskTexts) -> bool:
    """Whether a file of the solution is also an input of the task: named in the instruction, or unchanged.

    An unchanged file counts only if the solution has a changed version of another such file.
    """
    given = {(Path(name).name, text) for name, text in texts.environment.items()}
    names = {name for name, _ in given if Path(name).suffix == path.suffix}
    return path.name in texts.instruction or any(
        Path(name).name in names and (Path(name).name, text) not in given for name, text in texts.solution.items()
    )


def _is_test_script(path: Path) -> bool:
    """Whether a test file is a script; data of the tests may also belong to the environment."""
    return path.name == "test.sh" or path.name.startswith("test_") or path.stem.endswith("_test")


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and _LEAST_BYTES <= path.stat().st_size <= _MAX_LEAK_BYTES:
            yield path


# Scripts: a test.sh that can end without a reward, and unpinned programs from the network

COMMENT = re.compile(r"(?:^|(?<=\s))#.*", re.MULTILINE)
_REWARD = re.compile(r"reward\.(?:txt|json)|/logs/verifier")
_SETS_ERREXIT = re.compile(r"^\s*set\s+-(?:[a-z]*e[a-z]*\b|o\s+errexit)", re.MULTILINE)
_UNSETS_ERREXIT = re.compile(r"^\s*set\s+\+(?:[a-z]*e[a-z]*\b|o\s+errexit)", re.MULTILINE)
_READS_EXIT_CODE = re.compile(r"\$\?")
_EXIT_TRAP = re.compile(r"^\s*trap\b.*\b(?:EXIT|0)\s*$", re.MULTILINE)
_EXIT = re.compile(r"(?:^|[;&|{(]|\bthen\b|\belse\b)\s*exit\b")
_WORKDIR_GUARD = re.compile(r"\$\{?PWD\}?\"?\s*={1,2}\s*\"?/\"?|\$\(pwd\)")
"""Guard in Terminal-Bench's template, which exits without a verdict if there is no working directory."""
_PYTHON_FILE = re.compile(r"\b([A-Za-z_]\w*)\.py\b")
_DYNAMIC_IMPORT = re.compile(r"\b(?:spec_from_file_location|SourceFileLoader|runpy\.run_path|exec\(open)\b")
_PIPED = re.compile(r"\b(?:curl|wget)\b([^\n|;&]*)\|\s*(?:sudo\s+)?(?:env\s+\S+\s+)*(?:ba|da|z)?sh\b")
_VERSION = re.compile(r"/v?\d+\.\d+|[0-9a-f]{12,}")


def script_hints(texts: TaskTexts) -> Iterator[Hint]:
    """Yield reasons why a verdict may be missing, or differ at another time."""
    yield from _without_reward(texts)
    yield from _imports_of_agent_code(texts)
    if why := texts.task.solve_problem:
        yield Hint(texts.task.solve_script, why)
    for place, text in _all_texts(texts):
        if place.suffix == ".sh" or place.name.startswith("Dockerfile"):
            yield from (Hint(place, words) for words in _unpinned(text))


def _all_texts(texts: TaskTexts) -> Iterator[tuple[Path, str]]:
    """Iterate over all texts with their paths."""
    yield from ((texts.path / "environment" / name, text) for name, text in texts.environment.items())
    yield from ((texts.test_path(name), text) for name, text in texts.tests.items())
    yield from ((texts.task.solve_script.parent / name, text) for name, text in texts.solution.items())


def _without_reward(texts: TaskTexts) -> Iterator[Hint]:
    path, script = texts.test_path("test.sh"), COMMENT.sub("", texts.tests.get("test.sh", ""))
    if texts.task.brings_tests and not script:
        return  # the tests are in an image
    if not any(_REWARD.search(text) for text in texts.tests.values()):
        yield Hint(path, "no file in tests/ writes /logs/verifier/reward.txt, so there is no verdict")
        return
    if _EXIT_TRAP.search(script):
        return
    lines = script.splitlines()
    writes = [number for number, line in enumerate(lines) if _REWARD.search(line) and "ctrf" not in line]
    for number, line in enumerate(lines[: min(writes, default=0)]):
        is_guarded = any(_WORKDIR_GUARD.search(each) for each in lines[max(0, number - 6) : number + 1])
        if _EXIT.search(line) and not is_guarded:
            yield Hint(path, f"line {number + 1}: exits before a reward is written, so there is no verdict")
    if (code := _READS_EXIT_CODE.search(script)) is not None and _exits_on_failure_at(script, code.start()):
        yield Hint(path, "reads $? under `set -e`: a failing test ends the script before a reward is written")


def _exits_on_failure_at(script: str, place: int) -> bool:
    """Whether a failing command at this position would end the script."""
    before = script[:place]
    last = max((found.start() for found in _SETS_ERREXIT.finditer(before)), default=-1)
    line = before.rpartition("\n")[2]
    return last > max((found.start() for found in _UNSETS_ERREXIT.finditer(before)), default=-1) and "||" not in line


def _imports_of_agent_code(texts: TaskTexts) -> Iterator[Hint]:
    """Yield tests that import the agent's code, which can then manipulate them unnoticed."""
    parts = (texts.instruction, *texts.environment.values(), *texts.environment, *texts.solution.values())
    made = {name for text in parts for name in _PYTHON_FILE.findall(text)}
    made -= {Path(name).stem for name in texts.tests}
    for place, text, tree in python_tests(texts):
        nodes = list(ast.walk(tree))
        imports = {each.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for each in node.names}
        imports |= {(node.module or "").partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
        found = [f"imports `{module}`" for module in sorted(imports & made)]
        found += [f"loads code by `{each}`" for each in _DYNAMIC_IMPORT.findall(text)]
        if found:
            words = f"{found[0]}: the agent's code can manipulate tests in the same process; run it in another one"
            yield Hint(place, words)


def _unpinned(text: str) -> Iterator[str]:
    for found in _PIPED.finditer(re.sub(r"\\\n\s*", " ", text)):
        if not _VERSION.search(found[1]):
            yield f"`{' '.join(found[0].split())}` runs whatever is published at the time; pin a version"
