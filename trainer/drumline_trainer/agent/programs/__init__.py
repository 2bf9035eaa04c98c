"""The programs of `python -m drumline_trainer.agent`: `run` and `join`."""
