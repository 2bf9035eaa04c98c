"""Connect Drumline to the training loops of well-known libraries, one file per library."""
