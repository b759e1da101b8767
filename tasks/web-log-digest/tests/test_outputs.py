"""One test for each answer; the reward is the share that passes."""

import json
from pathlib import Path
from typing import Any


def answer(key: str) -> Any:
    report = json.loads(Path("/app/report.json").read_text())
    assert isinstance(report, dict)
    return report[key]


def test_requests() -> None:
    assert answer("requests") == 1500


def test_clients() -> None:
    assert answer("clients") == 299


def test_errors_by_day() -> None:
    assert answer("errors_by_day") == {"2024-03-11": 4, "2024-03-12": 40}


def test_slowest_path() -> None:
    assert answer("slowest_path") == "/items/export"


def test_busiest_minute() -> None:
    assert answer("busiest_minute") == "2024-03-12T04:15"
