"""Networks of trials and builds: the bridge that all share, those that are closed to the host, and routers."""
