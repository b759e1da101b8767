"""Verification in a fresh container: collects the agent's artifacts, restores them there, and runs the verifier."""
