"""The services of a compose file as the containers, networks and volumes of one trial."""
