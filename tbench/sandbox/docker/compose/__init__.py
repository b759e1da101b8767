"""Runs the services of a compose file as containers, networks and volumes of one trial."""
