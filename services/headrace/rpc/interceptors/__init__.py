"""What is done around every call that a server answers."""
