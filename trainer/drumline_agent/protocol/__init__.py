"""The messages that agents of one gang send each other: JSON, typed on arrival."""
