"""Notify people and programs: exactly one message for each change of a job's outlook."""
