"""The page of a trial: steps, terminal, tests, and a comparison with another trial."""
