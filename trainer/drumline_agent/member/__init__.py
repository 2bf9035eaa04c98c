"""The part of the agent that every pod runs: it obeys the leader and reports to it."""
