"""telling: an order and its answer, and what is said if there is none that can be read."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tbench.control.listener import SOCKET_NAME
from tbench.control.telling import tell
from tbench.control.wire import Answer, Stop, as_line, read_request
from tbench.errors import UsageError


def told(tmp_path: Path, answer: bytes) -> tuple[str | UsageError, list[bytes]]:
    """What `tell` returns or raises if the run in a directory gives this answer, and what the run received."""
    seen: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / SOCKET_NAME))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                seen.append(connection.recv(1 << 16))
                connection.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            return tell(tmp_path, "stop", trial="täsk/0"), seen
        except UsageError as error:
            return error, seen
        finally:
            serving.join()


def test_an_order_is_the_request_of_that_name_and_its_answer_is_a_line(tmp_path: Path) -> None:
    words, seen = told(tmp_path, as_line(Answer(ok=True, words="is stopped")))
    assert words == "is stopped"
    assert read_request(seen[0]) == Stop(trial="täsk/0")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (as_line(Answer(ok=False, words="already has a verdict")), "already has a verdict"),
        (b"", "the run has ended"),
        (b"not JSON\n", "of another version"),
        (json.dumps({"ok": True}).encode() + b"\n", "of another version"),
        (b"[1]\n", "of another version"),
    ],
)
def test_what_is_refused_or_cannot_be_read_is_a_usage_error(tmp_path: Path, answer: bytes, says: str) -> None:
    found, _ = told(tmp_path, answer)
    assert isinstance(found, UsageError) and says in str(found)


def test_orders_are_given_without_data_classes(tmp_path: Path) -> None:
    ended: Any = subprocess.run(
        [sys.executable, "-c", LOADED, "stop", str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert "not a run directory" in ended.stderr
    assert json.loads(ended.stdout) == []


LOADED = """
import json, sys
from tbench.cli import main
try:
    main()
except SystemExit:
    import tbench.control.telling
    print(json.dumps([name for name in ("pydantic", "harness.trajectory", "tbench.results") if name in sys.modules]))
"""
