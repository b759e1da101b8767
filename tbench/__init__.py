"""The benchmark side: tasks, sandboxes, verification, runs, results."""

__version__ = "0.1.0"
