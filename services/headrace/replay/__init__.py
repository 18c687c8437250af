"""The replay buffer: the ledger of every prompt, and the service around it."""
