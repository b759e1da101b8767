"""What becomes of a trial while somebody speaks to it."""
