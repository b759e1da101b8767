"""Task directories: read, checked, hashed, and where sets of them come from."""
