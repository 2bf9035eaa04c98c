"""Define the figures of the simulated week, each with its source. See docs/simulated-week.md."""
