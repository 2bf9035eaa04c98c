"""The programs of `python -m drumline_agent`: `run` and `join`."""
