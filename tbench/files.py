"""File helpers: atomic writes, JSON files, safe file names, cache directory, schema versions."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tbench.errors import UsageError
from tbench.text import escape_invisible, one_line, replace_unseen

Made = TypeVar("Made")
_TEMPORARY_PREFIX = ".writing-"


def write_atomically(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Write a temporary file and rename it to `path`: readers see either the old or the new content. Raises OSError.

    With `durable` this holds after a power cut, too, which otherwise may leave an empty file.
    """
    # Not derived from the name: names from a container may already have the maximum length.
    temporary = path.with_name(f"{_TEMPORARY_PREFIX}{os.urandom(8).hex()}")
    try:
        with in_directory(path.parent, lambda: temporary.open("wb")) as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            _sync_directory(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def writable(path: Path, advice: str = "") -> Iterator[None]:
    """Convert an OSError in the block, except BlockingIOError, to a UsageError that `path` cannot be written."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        what = f"{path}: cannot be written: {error.strerror or error}"
        raise UsageError(f"{what}; {advice}" if advice else what) from None


def _sync_directory(directory: Path) -> None:
    """Make the names in a directory survive a power cut, if its file system supports that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def in_directory(directory: Path, make: Callable[[], Made]) -> Made:
    """Return `make()`, which creates a file in `directory`; create the directory if missing. Raises OSError."""
    try:
        return make()
    except FileNotFoundError:  # tried first, because the directory nearly always exists
        directory.mkdir(parents=True, exist_ok=True)
        return make()


def is_temporary_file(path: Path) -> bool:
    """Whether a file looks like a leftover of a process that was killed in `write_atomically`."""
    return path.name.startswith(_TEMPORARY_PREFIX)


def write_json(path: Path, value: Any) -> None:
    """Write `value` durably as indented JSON, with invisible characters escaped. Raises OSError."""
    text = escape_invisible(json.dumps(value, indent=2, ensure_ascii=False))
    write_atomically(path, f"{text}\n".encode("utf-8", "replace"), durable=True)


def read_toml(path: Path, shown: str = "") -> dict[str, Any]:
    """Read a TOML file, which messages call `shown`, by default its path. Raises UsageError."""
    import tomllib  # few commands read such a file

    where = shown or str(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{where}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{where}: is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: is not valid TOML: {one_line(str(error))}") from None


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


def cache_home(variables: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of all caches: TBENCH_CACHE, else below XDG_CACHE_HOME, else below ~/.cache."""
    if own := variables.get("TBENCH_CACHE"):
        return Path(own).absolute()
    shared = variables.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path has to be ignored.
    base = Path(shared) if Path(shared).is_absolute() else Path.home() / ".cache"
    return base / "tbench"


def is_unused(path: Path) -> bool:
    """Whether `path` does not exist or is an empty directory. Raises UsageError."""
    try:
        return not path.exists() or (path.is_dir() and not any(path.iterdir()))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None


def safe_relative(name: str) -> Path:
    """Convert a file name from a container to a relative path that cannot leave its directory.

    Invisible characters become question marks, which are never longer.
    """
    name = replace_unseen(name, "?")
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    return Path(*parts) if parts else Path("unnamed")


def refuse_other_version(content: Mapping[str, Any], known: int) -> None:
    """Check the schema_version of a file's content. Raises ValueError with a one-line message."""
    if (version := content.get("schema_version")) != known:
        raise ValueError(
            f"schema_version {json.dumps(version)} is from another version of tbench, this one reads {known}; "
            "use the version that wrote it"
        )
