"""The agent side: a terminal, a model and the loop between them."""
