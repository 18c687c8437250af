"""The replay buffer on the wire: check, ask the rules, shape. The protos document each call."""
