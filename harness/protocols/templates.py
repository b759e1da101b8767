"""Prompt templates: one Jinja file per protocol, one named block per kind of message.

A line `{% include "NAME" %}` of a shipped file stands for the text of the block NAME in shared.jinja. It is replaced
before the file is hashed, so the hash of a prompt does not depend on how the prompt is divided into files.

A user's file may override some of the blocks. It is checked when it is loaded: every block is searched for unknown
names and rendered once with sample values.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Self

from jinja2 import Environment, StrictUndefined, Template, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.sandbox import SandboxedEnvironment

from harness.limits import OUTPUT_LIMIT_BYTES
from harness.model_text import Admitted, TokenGate, without_lone_surrogates

Samples = Mapping[str, Mapping[str, object]]
"""Variables that each block may use, with a sample value each."""

_SHARED = Path(__file__).with_name("shared.jinja")
_PART = re.compile(r"^{% block (\w+) %}\n(.*?)^{% endblock %}$", re.MULTILINE | re.DOTALL)
_INCLUDE = re.compile(r'^{% include "(\w+)" %}\n', re.MULTILINE)
_RENDER_ERRORS = (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class BrokenPrompt(ValueError):
    """Raised for an invalid prompt file; the message is one line, `file:line: problem`."""

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        where = f"{path}:{line}" if line else f"{path}"
        super().__init__(f"{where}: {' '.join(problem.split())}")


class Prompts:
    """The templates in use: the shipped blocks, overridden by those of the user's file.

    Raises BrokenPrompt.
    """

    def __init__(self, shipped: Path, samples: Samples, prompt_file: Path | None = None) -> None:
        self._blocks: dict[str, tuple[Path, Template]] = {}
        self._gate = TokenGate()
        digest = hashlib.sha256()
        for path in (shipped, prompt_file) if prompt_file else (shipped,):
            source = _read(path)
            if path is shipped:
                source = _INCLUDE.sub(lambda line: _shared_parts()[line[1]], source)
            digest.update(hashlib.sha256(source.encode()).digest())
            template = _load(path, source, samples)
            self._blocks |= dict.fromkeys(template.blocks, (path, template))
        self.hash = digest.hexdigest()
        """SHA-256 of the SHA-256 digests of all files in use."""

    def with_gate(self, gate: TokenGate) -> Self:
        """Return the same templates with a gate for all inserted values, except text that was rendered here."""
        prompts = copy(self)
        prompts._gate = gate
        return prompts

    def render(self, block: str, **values: object) -> str:
        """Render `block` with `values` to a message, always encodable. Raises BrokenPrompt."""
        path, template = self._blocks[block]
        admitted = {name: self._admit(value) for name, value in values.items()}
        return Admitted(without_lone_surrogates(_render(path, template, block, admitted)).strip("\n"))

    def _admit(self, value: object) -> object:
        if isinstance(value, str):
            return self._gate.admit(value)
        return list(map(self._admit, value)) if isinstance(value, list) else value


class PromptedProtocol(ABC):
    """Base of the shipped protocols, whose messages are rendered from `Prompts`."""

    name: str
    mark: str
    types_commands: bool
    samples: Samples

    def __init__(self, prompt_file: Path | None = None, observation_bytes: int = OUTPUT_LIMIT_BYTES) -> None:
        template = self.name.replace("-", "_") + ".jinja"
        self._limit = observation_bytes
        self._prompts = Prompts(Path(__file__).with_name(template), self.samples, prompt_file)

    def with_gate(self, gate: TokenGate) -> Self:
        """Return the same protocol with a gate for all text that is inserted into its messages."""
        protocol = copy(self)
        protocol._prompts = self._prompts.with_gate(gate)
        return protocol

    @property
    def prompt_hash(self) -> str:
        """SHA-256 of the prompt files in use."""
        return self._prompts.hash

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Functions offered with every request; none by default, as replies are text."""
        return ()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BrokenPrompt(path, None, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BrokenPrompt(path, None, f"is not UTF-8: byte {error.start}") from error


@cache
def _shared_parts() -> dict[str, str]:
    return dict(_PART.findall(_read(_SHARED)))


def _load(path: Path, source: str, samples: Samples) -> Template:
    template = _compile(path, source, tuple((block, tuple(values)) for block, values in samples.items()))
    for block in template.blocks:
        _render(path, template, block, samples[block])
    return template


@lru_cache(maxsize=32)
def _compile(path: Path, source: str, names: tuple[tuple[str, tuple[str, ...]], ...]) -> Template:
    """Compile a file's template, whose blocks may only use their given names. Raises BrokenPrompt."""
    environment = SandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    try:
        tree = environment.parse(source, filename=str(path))
        _check_blocks(path, environment, tree, dict(names))
        code = environment.compile(source, filename=str(path))
    except TemplateSyntaxError as error:
        raise BrokenPrompt(path, error.lineno, error.message or "syntax error") from error
    return Template.from_code(environment, code, environment.make_globals(None))


def _check_blocks(
    path: Path, environment: Environment, tree: nodes.Template, names: Mapping[str, Sequence[str]]
) -> None:
    blocks = list(tree.find_all(nodes.Block))
    if not blocks:
        raise BrokenPrompt(path, None, f"defines no block; known blocks: {', '.join(names)}")
    for block in blocks:
        if block.name not in names:
            raise BrokenPrompt(path, block.lineno, f"unknown block {block.name!r}; known blocks: {', '.join(names)}")
        for name, line in _unknown_names(environment, block, names[block.name]):
            known = ", ".join(names[block.name]) or "none"
            raise BrokenPrompt(path, line, f"unknown variable {name!r} in block {block.name!r}; known: {known}")


def _unknown_names(environment: Environment, block: nodes.Block, known: Sequence[str]) -> Iterator[tuple[str, int]]:
    body = nodes.Template(block.body, lineno=block.lineno)
    body.set_environment(environment)
    undeclared = meta.find_undeclared_variables(body) - set(known)
    yield from ((name.name, name.lineno) for name in block.find_all(nodes.Name) if name.name in undeclared)


def _render(path: Path, template: Template, block: str, values: Mapping[str, object]) -> str:
    try:
        return "".join(template.blocks[block](template.new_context(dict(values))))
    except _RENDER_ERRORS as error:
        raise BrokenPrompt(path, _template_line(template, path, error), f"{error}") from error


def _template_line(template: Template, path: Path, error: Exception) -> int | None:
    """Return the line of the template that raised the error; Jinja's compiled code has other line numbers."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return line
