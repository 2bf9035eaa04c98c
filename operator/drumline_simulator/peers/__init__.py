"""Implement other schedulers as deciders, by their published rules (decision 51)."""
