"""What people do with a job that is there: wait for it, follow and read its logs, stop it."""
