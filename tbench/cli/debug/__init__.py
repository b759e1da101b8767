"""`tbench debug`: one trial, step by step, on one screen or as lines for scripts."""
