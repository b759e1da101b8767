"""A plugin of mypy that writes down which attributes of which classes are read, and where."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mypy.nodes import Context
from mypy.plugin import AttributeContext, MethodSigContext, Plugin
from mypy.types import Instance, Type, get_proper_type

READS = "TBENCH_READS"
"""The variable with the name of the file: a line for each read, `class.attribute module line`."""
WHOLE = "*"
"""Stands for all attributes, where a whole object is turned into a mapping."""
_WHOLES = {"pydantic.main.BaseModel.model_dump", "pydantic.main.BaseModel.__iter__"}
Found = TypeVar("Found", AttributeContext, MethodSigContext)


class ReadSettings(Plugin):
    """Records the reads, and changes no type."""

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        def record(found: AttributeContext) -> Type:
            if not found.is_lvalue:
                _write(fullname, found.api, found.context)
            return found.default_attr_type

        return record if fullname.startswith(("tbench.", "harness.", "reports.", "planted")) else None

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], Type] | None:
        def record(found: MethodSigContext) -> Type:
            if isinstance(whole := get_proper_type(found.type), Instance):
                _write(f"{whole.type.fullname}.{WHOLE}", found.api, found.context)
            return found.default_signature

        return record if fullname.endswith(".model_dump") else None


def _write(name: str, api: object, place: Context) -> None:
    with Path(os.environ[READS]).open("a", encoding="utf-8") as file:
        file.write(f"{name} {api.tree.fullname} {place.line}\n")  # type: ignore[attr-defined]


def plugin(version: str) -> type[Plugin]:
    """Return the plugin, as mypy asks for it."""
    return ReadSettings
