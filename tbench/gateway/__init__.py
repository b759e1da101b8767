"""The endpoint that an agent inside a sandbox talks to: three dialects, one way to the user's own model."""
