"""The prompt feeder: it owns the data set and the order of its rows."""
