"""A rank's model, optimizer and workers from the configuration: where all parallelisms meet."""
