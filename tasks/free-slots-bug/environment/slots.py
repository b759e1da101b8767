"""Finds the free time between meetings. Times are whole minutes since midnight."""

Slot = tuple[int, int]


def merge(busy: list[Slot]) -> list[Slot]:
    """The busy slots, sorted, with those that overlap or touch joined into one."""
    busy.sort()
    merged: list[Slot] = []
    for start, end in busy:
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def free_slots(busy: list[Slot], opens: int, closes: int, minimum: int = 1, found: list[Slot] = []) -> list[Slot]:
    """The gaps of at least `minimum` minutes between the busy slots, from `opens` to `closes`."""
    cursor = opens
    for start, end in merge(busy):
        if start - cursor > minimum:
            found.append((cursor, start))
        cursor = end
    if closes - cursor > minimum:
        found.append((cursor, closes))
    return found
