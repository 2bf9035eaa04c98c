"""Drumline's control plane: the API, the scheduler, the life of a job, and the operator."""

__version__ = "0.1.0"
