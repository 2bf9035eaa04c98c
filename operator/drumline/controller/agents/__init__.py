"""The operator's side of the agents' HTTP API: a client, and one watch per running gang."""
