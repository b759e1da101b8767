"""Datasets of recorded steps: reading them, and building them from recorded conversations."""
