"""Reads JSON files that may be missing, broken or written by other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tbench.errors import UsageError
from tbench.text import one_line


def read_json(path: Path, advice: str) -> Any:
    """Read the value in a file. Raises UsageError, with `advice` if the file cannot be opened."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; {advice}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON ({one_line(str(error), 120)})") from None


def read_object_or_none(path: Path) -> dict[str, Any] | None:
    """Read the JSON object in a file; None if it cannot be read or is not an object."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
