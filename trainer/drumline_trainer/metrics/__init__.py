"""Metrics of a run: heartbeats, progress lines, losses, step parts, memory, MFU, bottleneck."""
