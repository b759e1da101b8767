"""The terminal session as an asciicast v2 file, written as it happens.

Source: https://docs.asciinema.org/manual/asciicast/v2/
"""

from __future__ import annotations

import codecs
import contextlib
import json
import time
from pathlib import Path
from typing import IO

_ENCODER = json.JSONEncoder(ensure_ascii=False)


class Recording:
    """Appends events to an asciicast. Output beyond `limit_bytes` is left out, and a marker says so.

    A file that cannot be written any more (a full disk) ends the recording, not the session: `problem` says why.
    """

    def __init__(self, path: Path, *, columns: int, rows: int, limit_bytes: int = 64 << 20) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] | None = path.open("w", encoding="utf-8", errors="replace", newline="\n")
        self.problem: str | None = None
        self._left = limit_bytes
        self._start = time.monotonic()
        # Incremental, because a character may be cut between two reads; never surrogates.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        header = {"version": 2, "width": columns, "height": rows, "timestamp": int(time.time())}
        self._file.write(json.dumps(header) + "\n")

    def output(self, data: bytes) -> None:
        """Record what the terminal printed."""
        if self._left <= 0:
            return
        self._left -= len(data)
        text = self._decoder.decode(data)
        if text:
            self._write("o", text)
        if self._left <= 0:
            self.marker("recording limit reached: later output is not recorded")

    def input(self, text: str) -> None:
        """Record what was typed."""
        self._write("i", text)

    def marker(self, label: str) -> None:
        """Record a remark, shown by players as a chapter mark."""
        self._write("m", label)

    def _write(self, kind: str, text: str) -> None:
        if self._file is None:
            return
        elapsed_sec = round(time.monotonic() - self._start, 6)
        try:
            # An encoder that is made once, and for the text alone: a step has several events.
            self._file.write(f'[{elapsed_sec}, "{kind}", {_ENCODER.encode(text)}]\n')
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        """Put into the file what was recorded so far, so that it outlives this process."""
        if self._file is None:
            return
        try:
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Flush and close; later events are ignored."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self._give_up(error)
            self._file = None

    def _give_up(self, error: OSError) -> None:
        self.problem = error.strerror or str(error)
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
