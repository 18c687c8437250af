"""What generates: token ids in, token ids with their log-probabilities out."""
