"""Reads and checks the compose files of tasks."""
