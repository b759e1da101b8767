"""The agent side: a terminal, a model, the loop between them."""
