"""Single-turn extraction: one reply per task and seed, read and never executed. A proxy, not a score of tasks."""
