"""Commands that make pages of stored runs, and one that serves them."""
