"""The HTTP API that both programs of the agent serve, and how records reach every member."""
