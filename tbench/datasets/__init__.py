"""Datasets by name: from what a user says to a directory of tasks whose origin is known and checked."""
