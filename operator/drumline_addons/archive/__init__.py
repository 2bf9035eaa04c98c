"""Archive jobs, so that they can be read after object, pods and namespace are deleted."""
