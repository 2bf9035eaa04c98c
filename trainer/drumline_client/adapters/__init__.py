"""Drumline in the training loops of well-known libraries: a small file each."""
