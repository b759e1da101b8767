"""Explains scores: why trials failed, whether two runs were the same experiment, and the parts of their difference."""
