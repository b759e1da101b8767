"""Evaluations that execute nothing: next-action replay, extraction, and how they correlate with executed scores."""
