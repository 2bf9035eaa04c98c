"""Failures of pods and what they cost: classes, incidents, restart budgets, GPU-seconds."""
