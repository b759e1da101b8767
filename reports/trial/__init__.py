"""The page of a trial: steps, terminal, tests, and where it parts from another trial."""
