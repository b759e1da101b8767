"""The nightly gate: whether a benchmark that runs every night has dropped, since when, and on which tasks. Pure."""
