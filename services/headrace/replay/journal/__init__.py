"""The journal: every change of the ledger, durable and in order."""
