"""The socket on which a run under way is spoken to: what is said on it, its server in the run, and its clients."""
