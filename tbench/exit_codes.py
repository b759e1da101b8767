"""Exit codes of the commands; 0 is success."""

from collections.abc import Iterable

BUG = 1
USAGE = 2
"""The user has to change something, or the machine lacks something."""
TOO_FEW_VERDICTS = 3
"""Too few trials have a verdict, or none."""
ENDPOINT_DOWN = 4
"""The run stopped because the endpoint is down."""
ALARM = 5
"""The nightly gate raised an alarm."""
STOPPED = 6
"""The run was stopped as planned, and its trials can be continued."""
INTERRUPTED = 130
_WORST_FIRST = (ALARM, BUG, USAGE, ENDPOINT_DOWN)


def worst(codes: Iterable[int]) -> int:
    """Return the worst exit code by rank, or else the smallest; 0 only if there is no other."""
    failed = set(codes) - {0}
    return next((code for code in _WORST_FIRST if code in failed), min(failed, default=0))
