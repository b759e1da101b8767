"""Commands that execute nothing in a sandbox."""
