"""The state of an agent: its ranks, its record, incidents, notices."""
