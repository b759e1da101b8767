"""HTTP servers for this machine."""
