"""Data between an agent and its ranks: placements, orders, heartbeats, snapshot files."""
