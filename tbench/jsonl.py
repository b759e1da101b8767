"""Lines of JSON that somebody else may have written: each is an object of a model, or a problem with its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tbench.errors import one_line

Model = TypeVar("Model", bound=BaseModel)


def read_lines(
    path: Path, raw: bytes, model: type[Model], problems: list[str], mend: Callable[[Any], Any] = lambda value: value
) -> Iterator[tuple[str, Model]]:
    """`FILE:LINE` and the object, for each line of `raw` that is one; of the others `FILE:LINE: what is wrong` is added
    to `problems`. Blank lines are nothing. `mend` gets the decoded value before it is looked at."""
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            yield where, model.model_validate(mend(json.loads(line)))
        except ValidationError as error:
            problems.append(f"{where}: {first_problem(error)}")
        except (ValueError, RecursionError) as error:
            problems.append(f"{where}: not JSON ({one_line(str(error))})")


def first_problem(error: ValidationError, whole: str = "line") -> str:
    """Where and what, in one line; `whole` stands for the place where all of it is wrong."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {one_line(first['msg'])}"
