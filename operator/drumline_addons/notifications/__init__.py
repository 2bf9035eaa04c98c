"""Messages to people and programs: exactly one for each change of a job's outlook."""
