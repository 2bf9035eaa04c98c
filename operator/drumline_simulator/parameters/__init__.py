"""The figures that the simulated week rests on, each with its source; docs/simulated-week.md."""
