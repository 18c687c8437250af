"""Measures what headrace can do on a machine, beside TransferQueue and a bare pipeline."""
