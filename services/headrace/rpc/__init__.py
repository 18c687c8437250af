"""What every headrace process needs to serve, to call and to wait."""
