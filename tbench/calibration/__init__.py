"""Measures tasks before models are: what their oracle and doing nothing score here, and what that says of a task."""
