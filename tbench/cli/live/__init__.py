"""Commands that speak to a run under way."""
