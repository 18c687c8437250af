"""How responses are scored, in processes that can be killed."""
