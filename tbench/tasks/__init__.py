"""Task directories: their format, files and hash, what tbench lacks for them, and where sets of them come from."""
