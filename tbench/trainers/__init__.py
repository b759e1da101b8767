"""Rollouts as trainers call them, one module per trainer."""
