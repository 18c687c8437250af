"""The configuration: one YAML file, one frozen model per section."""
