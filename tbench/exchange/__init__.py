"""Formats of others: their results as runs, and runs in their forms."""
