"""Datasets of recorded steps: read, and built from trajectories."""
