"""Act on an existing job: wait for it, follow and read its logs, stop it."""
