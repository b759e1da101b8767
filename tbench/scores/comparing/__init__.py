"""Paired comparison of two runs: which is better, by how much, and whether it may be noise. Pure."""
