"""Datasets by name: resolves a user's reference to a directory of tasks with a known and verified origin."""
