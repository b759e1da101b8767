"""The page of a run, in a site or as a self-contained report."""
