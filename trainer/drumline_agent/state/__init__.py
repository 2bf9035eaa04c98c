"""What an agent knows: its ranks, its record, incidents, notices."""
