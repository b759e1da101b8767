"""Statistics of rewards, the summary of a run, and its tables."""
