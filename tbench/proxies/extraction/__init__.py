"""Single-turn extraction: whether a reply holds one usable command."""
