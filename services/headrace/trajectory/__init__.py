"""What a trajectory is called, and how it travels to and from the store."""
