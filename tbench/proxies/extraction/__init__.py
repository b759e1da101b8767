"""Single-turn extraction: does a reply contain one usable command?"""
