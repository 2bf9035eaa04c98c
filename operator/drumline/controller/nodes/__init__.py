"""Nodes and the pods on them: use, health, devices, and what the scheduler sees of them."""
