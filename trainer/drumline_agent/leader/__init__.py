"""The part of the agent that leads the gang: rounds, hang detection, root causes, restarts."""
