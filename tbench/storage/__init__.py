"""The run directory on disk: one writer, one reader, and the JSON lines under both."""
