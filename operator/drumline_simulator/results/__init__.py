"""Compute the results of a simulation: its outcome, statistics and charts."""
