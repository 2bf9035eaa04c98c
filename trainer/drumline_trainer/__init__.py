"""Drumline's trainer: the code that runs inside the pods of a TrainingJob, or without any."""
