"""The trajectory store: the only process that speaks to TransferQueue."""
