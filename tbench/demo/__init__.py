"""`scripted-demo`: an endpoint that plays prepared replies, to try tbench out without a model.

It is a script and no model: its scores say nothing, and it carries its name everywhere.
"""
