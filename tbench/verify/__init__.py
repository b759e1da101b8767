"""Whether a task was solved: the verifier runs, its reward is read, and what speaks against it is told."""
