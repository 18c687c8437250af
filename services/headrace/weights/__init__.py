"""Weights on their way from the trainer to the workers, as checksummed directories."""
