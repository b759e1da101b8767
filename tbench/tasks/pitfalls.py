"""Cheap checks of a task's files, which seldom give a false alarm. Nothing is started."""

from __future__ import annotations

import ast
import math
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from tbench.tasks.artifacts import with_logs
from tbench.tasks.dockerfile import copied_paths
from tbench.tasks.lint import (
    COMMENT,
    Hint,
    TaskTexts,
    expected_paths,
    instruction_hints,
    is_agent_path,
    leak_hints,
    python_tests,
    script_hints,
    texts_of,
)
from tbench.tasks.task import Task

_CONTINUED = re.compile(r"\\\r?\n\s*")
_HEREDOC = re.compile(r"<<-?\s*[\"']?(\w+)[\"']?[^\n]*\n.*?^\s*\1\s*$", re.DOTALL | re.MULTILINE)


def _commands(script: str) -> Iterator[str]:
    """Yield the lines of a shell script without comments and here-documents, with continued lines joined."""
    for line in _CONTINUED.sub(" ", _HEREDOC.sub("\n", script)).splitlines():
        if line := COMMENT.sub("", line).strip():
            yield line


def _shell(texts: TaskTexts) -> Iterator[tuple[Path, str]]:
    """Iterate over the shell scripts of the tests."""
    return ((texts.test_path(name), text) for name, text in texts.tests.items() if name.endswith(".sh"))


# The image

_STAGE_NAME = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE | re.MULTILINE)
_PLAIN_BASE = re.compile(
    r"(?:docker\.io/|public\.ecr\.aws/docker/)?(?:library/)?"
    r"(?:python|debian|ubuntu|alpine|node|golang|rust|gcc|ruby|fedora|busybox)(?:[:@].*)?"
)
_SECRET = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|hf_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}|xox[bap]-[\w-]{16,})"
    r"|Authorization:\s*(?:Bearer|Basic|token)\s+(?!\$)[\w.=+/-]{8,}"
    r"|https?://[^\s/:@$]+:[^\s/:@$]+@"
    r"|\b(?:ENV|ARG)\s+\w*(?:SECRET|TOKEN|API_?KEY)\w*[= ][\"']?(?!\$)[^\s\"']{12,}",
    re.IGNORECASE,
)
_SECRET_FILE = re.compile(
    r"(?:^|/)(?:\.env|\.netrc|\.npmrc|\.pypirc|id_rsa|id_ed25519|\.aws|\.ssh|credentials(?:\.json)?)/?$"
)


def missing_copies(texts: TaskTexts) -> Iterator[Hint]:
    """Yield the sources of COPY and ADD that the build context lacks."""
    root, dockerfile = texts.path / "environment", texts.environment.get("Dockerfile")
    if dockerfile is None or texts.task.services is not None:
        return
    names = {path.relative_to(root).as_posix() for path in texts.task.context("environment")}
    for source in copied_paths(_HEREDOC.sub("\n", dockerfile)):
        plain = posixpath.normpath(source)
        if plain in ("", ".") or "$" in plain or "://" in source or plain.startswith(("<<", "git@")):
            continue
        if not any(name == plain or name.startswith(f"{plain}/") or fnmatch(name, plain) for name in names):
            yield Hint(root / "Dockerfile", f"copies {source}, which is not in environment/", "missing file")


def secrets_sent(texts: TaskTexts) -> Iterator[Hint]:
    """Yield secrets in a Dockerfile, which become part of the image."""
    dockerfile = texts.environment.get("Dockerfile", "")
    where = texts.path / "environment" / "Dockerfile"
    for number, line in enumerate(dockerfile.splitlines(), start=1):
        if not line.lstrip().startswith("#") and _SECRET.search(line):
            yield Hint(where, f"line {number}: a secret, which everybody who has the image can read", "secret")
    for source in copied_paths(dockerfile):
        if _SECRET_FILE.search(source):
            yield Hint(where, f"copies {source}, which looks like a secret, into the image", "secret")


def unpinned_bases(texts: TaskTexts) -> Iterator[Hint]:
    """Yield base images without a version, which can become different images later."""
    dockerfile, stages = _HEREDOC.sub("\n", texts.environment.get("Dockerfile", "")), {"scratch"}
    for image, stage in _STAGE_NAME.findall(dockerfile):
        name = image.rpartition("/")[2]
        if image not in stages and "$" not in image and "@" not in name and name.partition(":")[2] in ("", "latest"):
            yield Hint(texts.path / "environment" / "Dockerfile", f"FROM {image} has no version", "not pinned")
        stages.add(stage)


# Scripts of the tests

_CALLS_PYTEST = re.compile(r"(?:^|[\s;&|(])(?:python3?\s+-m\s+)?pytest(?:\s|$)")
_INSTALLS = re.compile(
    r"\b(?:pip3?|uv|uvx|pipx|conda|poetry|apt|apt-get|apk|dnf)\b[^\n]*(?:\bpytest\b|\s-r\s|\.txt\b|\bsync\b)"
)
_FETCHES = re.compile(
    r"\b(?:curl|wget|git\s+clone)\b[^|;&]*https?://(?!localhost|127\.|0\.0\.0\.0|\$)[\w.-]+\.[a-z]{2,}"
    r"|\bapt(?:-get)?\s+(?:-\S+\s+)*(?:update|install)\b|\bapk\s+add\b|\bnpm\s+(?:ci|install)\b|\buvx\s"
    r"|\bpip3?\s+install\s(?![^\n]*(?:--no-index|/wheels|\s-e\s|\s\.(?:\s|$)))"
)
_PIP = re.compile(r"\bpip3?\s+install\b([^|;&\n]*)")
_WITH_VALUE = re.compile(r"(?:-r|-c|-i|-f|-t|--[\w-]+)\s+\S+|\s-\S+")
_CPUS = re.compile(r"\bnproc\b|\bcpu_count\(|\bsched_getaffinity\(|/proc/cpuinfo")


def absent_pytest(texts: TaskTexts) -> Iterator[Hint]:
    """Yield test scripts that call pytest although neither they nor the image install it."""
    dockerfile = texts.environment.get("Dockerfile")
    if dockerfile is None or texts.task.brings_tests or texts.task.file.environment.docker_image:
        return
    installed = [*texts.environment.values(), *texts.tests.values()]
    bases = [image for image, _ in _STAGE_NAME.findall(dockerfile)]
    if not all(_PLAIN_BASE.fullmatch(image) for image in bases[-1:]):
        return  # the base image may have it
    if any("pytest" in text for text in texts.environment.values()):
        return
    if any(_INSTALLS.search(_CONTINUED.sub(" ", text)) for text in installed):
        return
    for path, script in _shell(texts):
        if any(map(_CALLS_PYTEST.search, _commands(script))):
            yield Hint(path, "calls pytest, which neither the image nor the tests install", "not installed")


def fetches_offline(texts: TaskTexts) -> Iterator[Hint]:
    """Yield commands that need a network, although their phase has none."""
    task, networks = texts.task, texts.task.file.networks
    verifier = task.file.verifier
    settings = verifier.environment or task.file.environment
    of_tests = verifier.network_in(settings.network) if verifier.is_separate else networks.verifier
    script = texts.tests.get("test.sh", "")
    reached = [(path, text) for path, text in _shell(texts) if path.name == "test.sh" or path.name in script]
    scripts = reached if of_tests.mode == "no-network" else []
    if networks.agent.mode == "no-network":
        scripts += [
            (task.solve_script.parent / name, text) for name, text in texts.solution.items() if name.endswith(".sh")
        ]
    for path, script in scripts:
        for line in _commands(script):
            if (found := _FETCHES.search(line)) and "||" not in line:
                yield Hint(
                    path, f"`{found[0].strip()[:60]}` needs the network, which the task turns off", "needs network"
                )
                break


def unpinned_tools(texts: TaskTexts) -> Iterator[Hint]:
    """Yield packages that tests install in whatever version is the newest at the time."""
    for path, script in _shell(texts):
        for found in (each for line in _commands(script) for each in _PIP.finditer(line)):
            words = _WITH_VALUE.sub(" ", f" {found[1]}").split()
            loose = [word for word in words if re.fullmatch(r"[A-Za-z][\w.-]*(?:\[[\w,]+\])?", word.strip("\"'"))]
            if loose:
                yield Hint(path, f"installs {', '.join(loose[:3])} without a version", "not pinned")
                break


def counted_cpus(texts: TaskTexts) -> Iterator[Hint]:
    """Yield tests that count CPUs: they see the machine's, not the task's."""
    cpus = texts.task.file.environment.cpus
    for name, text in texts.tests.items():
        code = "\n".join(_commands(text)) if name.endswith((".sh", ".py")) else ""
        if found := _CPUS.search(code):
            words = f"{found[0].rstrip('(')} gives the machine's CPUs, not the {cpus:g} of the task"
            yield Hint(texts.test_path(name), words, "machine's cpus")


# Tests in Python

_SEEDS = re.compile(
    r"\bseed\(|\bRandom\(\s*[\w\"']|default_rng\(\s*\w|RandomState\(\s*\w|\bPYTHONHASHSEED\b|derandomize|SEED"
)
_DRAWS = re.compile(
    r"(?<![\w.])(?:np\.|numpy\.)?random\.(?:random|randint|choices?|sample|shuffle|uniform|gauss|normal|randn?|randrange)\("
    r"|\buuid\.uuid[14]\(\)[^\n]*assert|\bdefault_rng\(\)"
)
_NOW = re.compile(r"\b(?:datetime\.(?:now|today|utcnow)|date\.today)\(")
_WRITES_ONE = re.compile(r"(?:echo|printf)\s+(?:-n\s+)?[\"']?1(?:\.0)?[\"']?\s*>")
_OPENS = re.compile(r"(?:^|[;&|]\s*|\b(?:then|do|else)\s+)(?:if|case|for|while|until)\b|\{$|\($")
_CLOSES = re.compile(r"(?:^|[;&]\s*)(?:fi|esac|done)\b|^[})]")
_MAY_END = re.compile(r"\b(?:exit|exec|return|trap)\b|\bset -\w*e|\berrexit\b|(?:&&|\|\|)$")
_CLOCK = re.compile(r"\btime\.(?:time|monotonic|perf_counter)\(\)|\b(?:perf_counter|monotonic)\(\)")
_SLOWEST_SEC = 10.0
"""Limit in a test below which a busy machine may exceed it."""
_HARMLESS = {"print", "len", "str", "Path", "os.path.join", "os.path.exists"}
_MISSING = "passes if the files that it looks for are missing"
_FINDS = re.compile(r"\b(?:listdir|scandir|iterdir|i?r?glob|walk)\(")
_EXISTS = re.compile(r"\bexists\(|\bis_file\(|\bisfile\(|\bis_dir\(")


def unrepeatable_tests(texts: TaskTexts) -> Iterator[Hint]:
    """Yield tests whose verdict depends on an unseeded draw, on the day, or on the speed of the machine."""
    for path, text, tree in python_tests(texts):
        if not _SEEDS.search(text) and (found := _DRAWS.search(text)):
            line = text.count("\n", 0, found.start()) + 1
            yield Hint(path, f"line {line}: draws at random without a seed", "not repeatable")
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert) and _NOW.search(ast.unparse(node)):
                yield Hint(path, f"line {node.lineno}: compares with the time of the run", "not repeatable")
                break
        for line, seconds in _time_limits(tree):
            words = f"line {line}: fails if {seconds:g} s are exceeded, as on a busy machine"
            yield Hint(path, words, "not repeatable")


def _time_limits(tree: ast.Module) -> Iterator[tuple[int, float]]:
    """Yield line and seconds of each assertion that a measured time is below a few seconds."""
    nodes = list(ast.walk(tree))
    spans = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and _CLOCK.search(ast.unparse(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in nodes:
        test = node.test if isinstance(node, ast.Assert) else None
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Lt | ast.LtE):
            continue
        limit = test.comparators[0]
        is_span = (isinstance(test.left, ast.Name) and test.left.id in spans) or _CLOCK.search(ast.unparse(test.left))
        seconds = limit.value if isinstance(limit, ast.Constant) and isinstance(limit.value, int | float) else math.inf
        if is_span and seconds < _SLOWEST_SEC:
            yield test.lineno, seconds


def empty_tests(texts: TaskTexts) -> Iterator[Hint]:
    """Yield tests that check nothing, or that pass if the agent has left nothing."""
    for path, _, tree in python_tests(texts):
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        tests = [(node, _passes_why(node)) for node in functions if node.name.startswith("test")]
        requires_files = any(why == "" and _EXISTS.search(ast.unparse(node)) for node, why in tests)
        for node, why in tests:
            if why and not (why == _MISSING and requires_files):
                yield Hint(path, f"line {node.lineno}: {node.name} {why}", "always passes")
    if _always_writes_one(texts.tests.get("test.sh", "")):
        yield Hint(texts.test_path("test.sh"), "writes a reward of 1 whatever happens before", "always passes")


def _always_writes_one(script: str) -> bool:
    """Whether a script writes its only reward, 1, outside of all blocks and behind no command that may end it."""
    before: list[str] = []
    lines = (part.strip() for line in _commands(script) for part in line.split(";"))
    for line in lines:
        if "reward." in line:
            depth = sum(len(_OPENS.findall(each)) - len(_CLOSES.findall(each)) for each in before)
            may_end = any(map(_MAY_END.search, before))
            return (
                _WRITES_ONE.match(line) is not None and depth == 0 and not may_end and "reward." not in "".join(lines)
            )
        before.append(line)
    return False


def _passes_why(test: ast.FunctionDef) -> str:
    """Return why a test function passes even if the agent did nothing; empty if there seems to be no reason."""
    body = [node for node in test.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    nodes = [node for statement in body for node in ast.walk(statement)]
    checks = [node for node in nodes if isinstance(node, ast.Assert | ast.Raise)]
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) not in _HARMLESS]
    if not checks:
        # Whatever is called or imported may fail.
        may_fail = calls or any(isinstance(node, ast.Import | ast.ImportFrom | ast.With) for node in nodes)
        return "" if may_fail else "checks nothing"
    if not calls and all(
        isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant) and node.test.value for node in checks
    ):
        return "asserts only what is always true"
    guarded = {id(node) for each in body if _is_guard(each) for node in ast.walk(each)}
    if all(id(node) in guarded for node in checks) and not test.args.args:
        return _MISSING
    return ""


def _is_guard(node: ast.stmt) -> bool:
    """Whether a block runs only if files exist: below a condition, or for each file that is found."""
    if isinstance(node, ast.For):
        return _FINDS.search(ast.unparse(node.iter)) is not None
    return (
        isinstance(node, ast.If)
        and not node.orelse
        and _EXISTS.search(ast.unparse(node.test)) is not None
        and not (isinstance(node.test, ast.UnaryOp))
    )


# What the agent's container has of tests and answers

_ANSWER = re.compile(r"(?:^|[_.-])(?:expected|truth|answers?|gold(?:en)?|oracle|solutions?)(?:[_.-]|$)", re.IGNORECASE)
"""Names of files with results that tests expect."""
_RUNS = re.compile(
    r"(?:^|[;&|(]\s*|\b(?:then|do|else|if|!)\s+)(?:(?:python3?|bash|sh|node|perl|ruby)\s+(?:-\w+\s+)*)?"
    r"(/[\w./-]+\.(?:py|sh|js|pl|rb))(?!\S)"
)
"""A script that a command runs by its absolute path."""
_CHECKS_SUMS = re.compile(r"sum\s+(?:-\S+\s+)*(?:-c|--check)\s+(?:-\S+\s+)*[\"']?(/[\w./@+-]+)")


def reachable_answers(texts: TaskTexts) -> Iterator[Hint]:
    """Yield files of the agent's container in which tests look up what to expect: the agent can change them."""
    if texts.task.file.verifier.is_separate:
        return
    for name, text in texts.tests.items():
        for path, line in dict(reversed(expected_paths(text))).items() if name.endswith(".py") else ():
            file = path.rpartition("/")[2]
            is_known = file not in texts.instruction and texts.is_in_environment(file)
            if _ANSWER.search(file) and is_agent_path(path) and is_known:
                words = f"line {line}: {path} is in the agent's container: it can read and change what the tests expect"
                yield Hint(texts.test_path(name), words, "answer in reach")
    for place, script in _shell(texts):
        for path in dict.fromkeys(each for line in _commands(script) for each in _CHECKS_SUMS.findall(line)):
            if is_agent_path(path) and path not in texts.instruction and texts.is_in_environment(path):
                words = f"compares with checksums in {path}, which is in the agent's container: the agent can change it"
                yield Hint(place, words, "answer in reach")


def replaceable_checkers(texts: TaskTexts) -> Iterator[Hint]:
    """Yield scripts of the agent's image that the tests run, and that the instruction does not mention."""
    files = {name.rpartition("/")[2] for name in texts.environment}
    for path, script in _shell(texts) if not texts.task.file.verifier.is_separate else ():
        for program in dict.fromkeys(each for line in _commands(script) for each in _RUNS.findall(line)):
            name = program.rpartition("/")[2]
            is_made = re.search(rf"(?:\bcp|\bmv|\bln|>)[^\n]*{re.escape(name)}", script) is not None
            if is_agent_path(program) and name in files and name not in texts.instruction and not is_made:
                words = f"runs {program}, which is in the agent's container: the agent can change it"
                yield Hint(path, words, "agent can change")


def compiled_files(texts: TaskTexts) -> Iterator[Hint]:
    """Yield a cache of compiled Python files beside the Dockerfile: it shows code that was not to be in the image."""
    if "__pycache__" in texts.names:
        words = "contains __pycache__, whose compiled files show the code that they were made of"
        yield Hint(texts.path / "environment", words, "left over")


# Instruction, and artifacts for a separate verifier

_DURATION = re.compile(
    r"(?:time limit|timeout|time out|you have|within|at most|complete (?:this|the) task in)\D{0,24}?"
    r"(\d[\d,]*(?:\.\d+)?)\s*(?:-\s*)?(second|sec|minute|min|hour)s?\b"
    r"(?:\s+(?:to|for) (?:complete|finish|solve|the task|this task)|\s*(?:\.|$))",
    re.IGNORECASE | re.MULTILINE,
)
_WHOLE_TASK = re.compile(
    r"\byou have\b|(?:complete|finish|solve)\b[^.]*\btask\b|\btime limit\b|\btask\b[^.]*\btimeout\b", re.IGNORECASE
)
_UNITS = {"s": 1, "m": 60, "h": 3600}
_RELATIVE = re.compile(
    r"\b(?:write|save|create|store|output|put|produce|generate)\b[^.\n`]{0,60}`(\.{0,2}/?[A-Za-z_][\w./-]*\.[A-Za-z]\w{0,5})`",
    re.IGNORECASE,
)
_PLACE = re.compile(
    r"`?/[A-Za-z][\w./-]*`?|\b(?:current|working|same|this|root|project|repository) (?:director|folder)|\brepo\b",
    re.IGNORECASE,
)


def wrong_limits(texts: TaskTexts) -> Iterator[Hint]:
    """Yield time limits in the instruction that are not the task's."""
    limit = texts.task.file.agent.timeout_sec or 0.0
    for found in _DURATION.finditer(texts.instruction) if limit else ():
        line = _line_around(texts.instruction, found.start())
        seconds = float(found[1].replace(",", "")) * _UNITS[found[2][0].lower()]
        if _WHOLE_TASK.search(line) and abs(seconds - limit) > 1:
            words = f"says {found[1]} {found[2]}s, but the agent has {limit:g} seconds"
            yield Hint(texts.path / "instruction.md", words, "unclear")


def relative_results(texts: TaskTexts) -> Iterator[Hint]:
    """Yield files that the instruction asks for without naming a directory."""
    if _PLACE.search(texts.instruction):
        return
    for name in dict.fromkeys(_RELATIVE.findall(texts.instruction)):
        yield Hint(texts.path / "instruction.md", f"{name}: no directory is named for it", "unclear")


def _line_around(text: str, place: int) -> str:
    return text[text.rfind("\n", 0, place) + 1 : (text.find("\n", place) + 1 or len(text) + 1) - 1]


def not_handed_over(texts: TaskTexts) -> Iterator[Hint]:
    """Yield paths that a separate verifier reads, but that are in no artifact."""
    task = texts.task
    if not task.file.verifier.is_separate:
        return
    given = [each.path for each in with_logs(task.file.artifacts)]
    of_image = [text for name, text in texts.tests.items() if name.startswith(("Dockerfile", "docker-compose"))]
    lost = [
        (texts.test_path(name), path, line)
        for name, text in texts.tests.items()
        for path, line in (expected_paths(text) if name.endswith(".py") else ())
        if is_agent_path(path) and not _is_given(path, given) and not _is_there(path, texts, of_image)
    ]
    if lost:
        where, path, line = lost[0]
        more = f" or {len(lost) - 1} other paths" if len(lost) > 1 else ""
        yield Hint(where, f"line {line}: no artifact hands {path} over to the verifier{more}", "not handed over")


def _is_given(path: str, artifacts: Sequence[str]) -> bool:
    place = path.rstrip("/")
    return any(place == each or place.startswith(f"{each}/") or each.startswith(f"{place}/") for each in artifacts)


def _is_there(path: str, texts: TaskTexts, of_image: Sequence[str]) -> bool:
    """Whether a file of this name is in the verifier's image anyway."""
    name = path.rstrip("/").rpartition("/")[2]
    made = of_image if texts.task.brings_tests else [*texts.environment.values()]
    return name in texts.tests or name in texts.names or any(name in text for text in made)


_PITFALLS: tuple[Callable[[TaskTexts], Iterator[Hint]], ...] = (
    missing_copies,
    secrets_sent,
    unpinned_bases,
    absent_pytest,
    fetches_offline,
    unpinned_tools,
    counted_cpus,
    unrepeatable_tests,
    empty_tests,
    reachable_answers,
    replaceable_checkers,
    compiled_files,
    wrong_limits,
    relative_results,
    not_handed_over,
)


# All hints about a task


def hints_about(task: Task) -> Iterator[Hint]:
    """Yield all likely mistakes in a task and its steps, without duplicates. Raises OSError."""
    yield from dict.fromkeys(_hints_about_parts(task))


def _hints_about_parts(task: Task) -> Iterator[Hint]:
    for texts in map(texts_of, task.parts):
        for hints in (instruction_hints, leak_hints, script_hints, *_PITFALLS):
            yield from hints(texts)
