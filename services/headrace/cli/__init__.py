"""The command line: commands, the launcher of a whole run, and what it shows."""
