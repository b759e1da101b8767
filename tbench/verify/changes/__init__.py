"""Finds what an agent changed in its container, and which changes can influence the tests."""
