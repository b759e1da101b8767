"""Evaluations that execute nothing (next-action replay, extraction), and their correlation with executed scores."""
