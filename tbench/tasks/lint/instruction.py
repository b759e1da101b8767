"""The instruction beside the tests: what they want and it does not say, and what it names and nobody knows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tbench.tasks.lint.texts import Hint, TaskTexts, paths_wanted

_PLACES = {"app", "home", "root", "srv", "opt", "data", "workspace", "work", "mnt", "var", "etc"}
"""Where the work of agents lies. What begins otherwise is often the path of a URL."""
_NOT_THE_AGENTS = re.compile(
    r"/(?:.*/\.git$|etc/(?:passwd|shadow|group|hosts|resolv\.conf|os-release|ssl)|var/lib|root/\.(?:local|cache))\b"
)
_NAME = re.compile(r"(?:/[\w.@+-]+){2,}/?")
_ADDRESS = re.compile(r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0)(?::|[\"'],\s*)(\d{2,5})\b|\b[Pp]ort\s*=\s*(\d{2,5})\b")
_CODE = (".py", ".sh", ".js", ".ts", ".rb", ".go")
_SERVES = re.compile(r"\.bind\(|\.listen\(|HTTPServer|http\.server|serve_forever")
_EXAMPLE = re.compile(r"\bexample|\be\.g\.|\bsuch as\b|\bformat\b", re.IGNORECASE)
_FILE = re.compile(r"(?<![\w/.:-])(/(?:[\w@+-][\w.@+-]*/)*[\w@+-][\w@+.-]*\.[A-Za-z]\w{0,9})\b(?![\w/*{<-])")


def hints(texts: TaskTexts) -> Iterator[Hint]:
    """What looks as if instruction and tests did not speak of the same task."""
    if not texts.instruction.strip():
        return
    yield from _unsaid_paths(texts)
    yield from _unsaid_ports(texts)
    yield from _unknown_files(texts)


def _unsaid_paths(texts: TaskTexts) -> Iterator[Hint]:
    seen: set[str] = set()
    scripts = "\n".join(text for file, text in texts.tests.items() if file.endswith(".sh"))
    for file, text in texts.tests.items():
        for path, line in paths_wanted(text) if file.endswith(".py") else ():
            name = path.rstrip("/").rpartition("/")[2]
            if path in seen or not _is_the_agents(path) or (texts.has_unknown_files and path.count("/") > 2):
                continue
            seen.add(path)
            if name in scripts:
                continue  # which may well make it
            if name not in texts.instruction and not texts.is_of_the_image(name):
                yield Hint(
                    texts.path / "tests" / file,
                    f"line {line}: {path}: the instruction does not name it, and the environment does not have it",
                )


def _unsaid_ports(texts: TaskTexts) -> Iterator[Hint]:
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
                    texts.path / "tests" / file, f"line {line}: port {port}: neither instruction nor environment say it"
                )


def _unknown_files(texts: TaskTexts) -> Iterator[Hint]:
    others = [*texts.tests.values(), *texts.solution.values()]
    said = "\n".join(line for line in texts.instruction.splitlines() if not _EXAMPLE.search(line))
    for path in dict.fromkeys(_FILE.findall(said)):
        name = path.rpartition("/")[2]
        if name.rpartition(".")[0] and not texts.is_of_the_image(name) and not any(name in each for each in others):
            yield Hint(
                texts.path / "instruction.md", f"{path}: neither environment nor tests nor solution know such a file"
            )


def _is_the_agents(path: str) -> bool:
    return _NAME.fullmatch(path) is not None and path.split("/")[1] in _PLACES and not _NOT_THE_AGENTS.match(path)
