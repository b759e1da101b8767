"""The commands about agents that people ship."""
