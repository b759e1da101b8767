"""How many trials a model's servers can take at once, found while they work."""
