"""JSON files that somebody else may have written, broken or not there at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tbench.errors import UsageError
from tbench.text import one_line


def read_json(path: Path, advice: str) -> Any:
    """The value that a file holds. Raises UsageError, with `advice` where the file cannot be read."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; {advice}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON ({one_line(str(error), 120)})") from None


def object_in(path: Path) -> dict[str, Any] | None:
    """The JSON object that a file holds; None where it cannot be read or holds none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
