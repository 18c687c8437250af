"""`headrace top`: a run as a table that fills the terminal."""
