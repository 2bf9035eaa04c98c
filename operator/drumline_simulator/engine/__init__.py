"""Simulate the cluster: its state, the events that change it, and the virtual clock."""
