"""Compose files of tasks: read, checked, and turned into frozen values. Starts nothing."""
