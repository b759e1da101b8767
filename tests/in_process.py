"""The command line within the tests' own process: the same as `tbench ...` in a new one, less the start of Python.

For what says its words and ends. What runs trials, or meets signals and terminals, has a process of its own.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

from tbench.cli import main


def tbench(*arguments: str, directory: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Output and exit code of a process in `directory`, with no settings in its environment but these."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TBENCH_", "OPENAI_"))}
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        mock.patch.dict(os.environ, {**environment, "COLUMNS": "100", **variables}, clear=True),
        mock.patch.object(sys, "argv", ["tbench", *arguments]),
        contextlib.chdir(directory or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int)
    said, complained = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(["tbench", *arguments], code, said, complained)
