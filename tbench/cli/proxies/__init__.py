"""Commands that score replies without executing them in a sandbox."""
