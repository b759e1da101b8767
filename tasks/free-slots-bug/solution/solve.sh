#!/bin/bash
set -e
cat > /app/slots.py <<'PY'
"""Finds the free time between meetings. Times are whole minutes since midnight."""

Slot = tuple[int, int]


def merge(busy: list[Slot]) -> list[Slot]:
    """The busy slots, sorted, with those that overlap or touch joined into one."""
    merged: list[Slot] = []
    for start, end in sorted(slot for slot in busy if slot[0] < slot[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def free_slots(busy: list[Slot], opens: int, closes: int, minimum: int = 1) -> list[Slot]:
    """The gaps of at least `minimum` minutes between the busy slots, from `opens` to `closes`."""
    found: list[Slot] = []
    cursor = opens
    for start, end in merge(busy):
        if min(start, closes) - cursor >= minimum:
            found.append((cursor, min(start, closes)))
        cursor = max(cursor, end)
    if closes - cursor >= minimum:
        found.append((cursor, closes))
    return found
PY
python3 -m pytest -q -p no:cacheprovider test_slots.py
