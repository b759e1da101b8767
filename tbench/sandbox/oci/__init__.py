"""Containers without an engine: a runtime such as runc on overlays of unpacked images, started by tbench itself."""
