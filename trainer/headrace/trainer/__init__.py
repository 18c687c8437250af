"""The process that learns: batches in, weights out."""
