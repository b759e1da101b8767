"""Commands for packaged agents, such as Codex."""
