"""Formats of others: what is read of them, and what stored runs become in them."""
