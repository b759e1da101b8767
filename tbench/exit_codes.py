"""Exit codes of the commands; 0 is success."""

BUG = 1
USAGE = 2
"""The user has to change something, or the machine lacks something."""
TOO_FEW_VERDICTS = 3
"""Too few trials have a verdict, or none."""
ENDPOINT_DOWN = 4
"""The run stopped because the endpoint is down."""
ALARM = 5
"""The nightly gate raised an alarm."""
INTERRUPTED = 130
