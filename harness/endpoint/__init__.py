"""The endpoint: where it is, what is asked of it, what comes back, and what is done where it fails or is away."""
