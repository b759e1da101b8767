"""A verifier in a container of its own: what the agent hands over, and the verdict about it."""
