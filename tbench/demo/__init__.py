"""`scripted-demo`: an endpoint that plays prepared replies, to try tbench out without a model.

It is a script, not a model: its scores are meaningless, and its name appears everywhere.
"""
