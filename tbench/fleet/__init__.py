"""Runs sandboxes on several machines, which may join, get lost and come back."""
