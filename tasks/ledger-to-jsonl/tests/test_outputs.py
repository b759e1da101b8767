"""Compares the converted ledger with its digest, which the instruction fully determines."""

import hashlib
import json
from pathlib import Path

LINES = Path("/app/ledger.jsonl")
DIGEST = "dc0aa4e36b7df91e442bc356c436ff5fe6dde6f0663517f4aec2c1e01e15f7be"
KEYS = ["account", "date", "name", "amount", "quantity", "memo"]


def test_there_is_one_object_for_each_active_record() -> None:
    rows = [json.loads(line) for line in LINES.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 74
    assert all(list(row) == KEYS for row in rows)


def test_the_file_is_exact_to_the_byte() -> None:
    assert hashlib.sha256(LINES.read_bytes()).hexdigest() == DIGEST


def test_its_digest_was_written_down() -> None:
    assert Path("/app/ledger.sha256").read_text() == DIGEST + "\n"
