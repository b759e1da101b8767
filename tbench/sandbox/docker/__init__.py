"""Docker, and Podman by the same interface: the only place that talks to a container engine."""
