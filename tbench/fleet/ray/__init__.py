"""Makes the engines of a Ray cluster's nodes available as machines of a run, each by a local socket."""
