"""Next-action replay: a model's replies to recorded steps, and how alike their commands are to the recorded ones.

Here is the directory of a run, which both halves share: `asking` fills it, `scoring` reads it.
"""
