"""Checks the plan and the seal that only the panel puts under it."""

import hashlib
import hmac
from pathlib import Path

PLAN = {"north": "21", "south": "19", "irrigation": "drip", "vents": "40", "lamps": "on"}
WAX = bytes(n * 73 % 251 ^ length for length in (9, 9, 10, 5, 5) for n in range(40, 56))


def sealed() -> tuple[bytes, bytes]:
    """The plan's text and its seal."""
    text, mark, seal = Path("/app/plan.sealed").read_bytes().rpartition(b"seal=")
    assert mark
    return text, seal.strip()


def test_the_plan_is_the_one_asked_for() -> None:
    lines = sealed()[0].decode().splitlines()
    plan = dict(line.split("=", 1) for line in lines)
    plan.pop("keys")
    assert plan == PLAN


def test_the_seal_is_the_panels() -> None:
    text, seal = sealed()
    stamp = hmac.new(hashlib.sha256(WAX).digest(), text, "sha256").hexdigest()
    assert hmac.compare_digest(stamp.encode(), seal)
