"""Rollouts in the forms that trainers call them in, a module for each."""
