"""Compute the nodes that autoscalers add or keep for gangs: which gangs, how many nodes, where."""
