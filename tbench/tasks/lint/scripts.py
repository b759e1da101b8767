"""Scripts of a task: a test.sh that can end without a reward, and programs from the network that change unseen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tbench.tasks.lint.texts import Hint, TaskTexts

_REWARD = re.compile(r"reward\.(?:txt|json)|/logs/verifier")
_STOPS = re.compile(r"^\s*set\s+-(?:[a-z]*e[a-z]*\b|o\s+errexit)", re.MULTILINE)
_GOES_ON = re.compile(r"^\s*set\s+\+(?:[a-z]*e[a-z]*\b|o\s+errexit)", re.MULTILINE)
_CODE = re.compile(r"\$\?")
_AT_THE_END = re.compile(r"^\s*trap\b.*\b(?:EXIT|0)\s*$", re.MULTILINE)
_EXIT = re.compile(r"(?:^|[;&|{(]|\bthen\b|\belse\b)\s*exit\b")
_NO_WORKDIR = re.compile(r"\$\{?PWD\}?\"?\s*={1,2}\s*\"?/\"?|\$\(pwd\)")
"""The guard of Terminal-Bench's own template: without a working directory there is to be no verdict."""
_PYTHON_FILE = re.compile(r"\b([A-Za-z_]\w*)\.py\b")
_LOADS = re.compile(r"\b(?:spec_from_file_location|SourceFileLoader|runpy\.run_path|exec\(open)\b")
_PIPED = re.compile(r"\b(?:curl|wget)\b([^\n|;&]*)\|\s*(?:sudo\s+)?(?:env\s+\S+\s+)*(?:ba|da|z)?sh\b")
_VERSION = re.compile(r"/v?\d+\.\d+|[0-9a-f]{12,}")


def hints(texts: TaskTexts) -> Iterator[Hint]:
    """What looks as if there could be no verdict, or another one tomorrow."""
    yield from _without_reward(texts)
    yield from _in_their_own_process(texts)
    for place, text in _placed(texts):
        if place.suffix == ".sh" or place.name.startswith("Dockerfile"):
            yield from (Hint(place, words) for words in _unpinned(text))


def _placed(texts: TaskTexts) -> Iterator[tuple[Path, str]]:
    """All texts with their paths."""
    yield from ((texts.path / "environment" / name, text) for name, text in texts.environment.items())
    yield from ((texts.place_of_test(name), text) for name, text in texts.tests.items())
    yield from ((texts.task.solve_script.parent / name, text) for name, text in texts.solution.items())


def _without_reward(texts: TaskTexts) -> Iterator[Hint]:
    path, script = texts.place_of_test("test.sh"), texts.tests.get("test.sh", "")
    if texts.task.brings_tests and not script:
        return  # they are in an image
    if not any(_REWARD.search(text) for text in texts.tests.values()):
        yield Hint(path, "nothing in tests/ writes /logs/verifier/reward.txt, so there is no verdict")
        return
    if _AT_THE_END.search(script):
        return
    lines = script.splitlines()
    writes = [number for number, line in enumerate(lines) if _REWARD.search(line) and "ctrf" not in line]
    for number, line in enumerate(lines[: min(writes, default=0)]):
        is_guarded = any(_NO_WORKDIR.search(each) for each in lines[max(0, number - 6) : number + 1])
        if _EXIT.search(line.partition("#")[0]) and not is_guarded:
            yield Hint(path, f"line {number + 1}: ends before a reward is written, and there is no verdict then")
    if (code := _CODE.search(script)) is not None and _stops_at(script, code.start()):
        yield Hint(path, "reads $? under `set -e`: a test that fails ends the script before a reward is written")


def _stops_at(script: str, place: int) -> bool:
    """Whether a failing command would end the script at this place."""
    before = script[:place]
    last = max((found.start() for found in _STOPS.finditer(before)), default=-1)
    line = before.rpartition("\n")[2]
    return last > max((found.start() for found in _GOES_ON.finditer(before)), default=-1) and "||" not in line


def _in_their_own_process(texts: TaskTexts) -> Iterator[Hint]:
    """Tests that import or load the agent's work: it can do there whatever they can, unseen."""
    parts = (texts.instruction, *texts.environment.values(), *texts.environment, *texts.solution.values())
    made = {name for text in parts for name in _PYTHON_FILE.findall(text)}
    made -= {Path(name).stem for name in texts.tests}
    for name, text in texts.tests.items():
        if not name.endswith(".py"):
            continue
        try:
            nodes = list(ast.walk(ast.parse(text)))
        except (SyntaxError, ValueError, RecursionError):
            continue
        imports = {each.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for each in node.names}
        imports |= {(node.module or "").partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
        found = [f"imports `{module}`" for module in sorted(imports & made)]
        found += [f"loads code by `{each}`" for each in _LOADS.findall(text)]
        if found:
            words = f"{found[0]}: work that runs in the tests' own process can turn them; run it in another"
            yield Hint(texts.place_of_test(name), words)


def _unpinned(text: str) -> Iterator[str]:
    for found in _PIPED.finditer(re.sub(r"\\\n\s*", " ", text)):
        if not _VERSION.search(found[1]):
            yield f"`{' '.join(found[0].split())}` runs what is there on that day; name a version"
