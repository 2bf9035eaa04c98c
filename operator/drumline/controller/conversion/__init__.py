"""Objects of the API server -> the values on which the pure packages decide. No state, no I/O."""
