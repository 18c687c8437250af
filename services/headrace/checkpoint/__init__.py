"""Checkpoints of the whole run: made by a coordinator that has no state of its own."""
