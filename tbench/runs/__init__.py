"""Runs of tasks × seeds: planning, admission, trials, verification, storage, resuming and regrading."""
