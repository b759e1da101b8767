"""What the commands end with: one number for each way, 0 for the ordinary one."""

BUG = 1
USAGE = 2
"""Something that the user or the machine has to change."""
UNCOVERED = 3
"""Too few verdicts, or none."""
AWAY = 4
"""The endpoint is away, so the run has stopped."""
ALARM = 5
"""The nightly gate's."""
INTERRUPTED = 130
