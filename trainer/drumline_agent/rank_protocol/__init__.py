"""What an agent and its ranks exchange: placements, orders, heartbeats, snapshot files."""
