"""Preemption, resizing, moving and repair of running gangs."""
