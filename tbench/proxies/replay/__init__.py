"""Next-action replay: compares the commands of a model's replies to recorded steps with the recorded ones.

Both halves share the run's `directory`: `generation` fills it, `scoring` reads it.
"""
