"""Kills a run of the user's own configuration on purpose, and judges from outside what is left."""
