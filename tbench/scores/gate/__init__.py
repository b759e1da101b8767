"""The nightly gate: has the score of a nightly benchmark dropped, since when, and on which tasks? Pure."""
