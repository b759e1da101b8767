"""New directories that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tbench.errors import UsageError
from tbench.files import is_unused
from tbench.storage.record_directory import writable


@contextlib.contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """A directory beside `target` to write into, which takes its name at the end of the block.

    If the block fails, nothing of it is left. Raises UsageError where `target` holds anything, or cannot be written.
    """
    if not is_unused(target):
        raise UsageError(f"{target}: is not empty; name a new directory with --output (nothing is overwritten)")
    beside = target.with_name(f".{target.name[:100]}.writing-{os.getpid()}")
    try:
        with writable(target):
            beside.mkdir(parents=True)
            yield beside
            beside.replace(target)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
