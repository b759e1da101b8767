"""Ray: the engines of a cluster's nodes as machines of a run, each behind a socket of this machine."""
