"""Agents that work in a sandbox: a model, the reference solution, one that does nothing, or a user's own."""
