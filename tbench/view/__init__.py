"""Pages over HTTP, and runs under way as they happen: a server that only reads."""
