"""Nodes that autoscalers add or keep for gangs: who needs them, how many, and where."""
