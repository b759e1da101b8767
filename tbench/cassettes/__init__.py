"""Cassettes: what a model was asked and what it answered, in a file, to be served again without the model."""
