"""Cassettes: files with recorded requests to a model and its answers, which can be served without the model."""
