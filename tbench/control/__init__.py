"""The control socket of a running run: messages, the run's server, and clients."""
