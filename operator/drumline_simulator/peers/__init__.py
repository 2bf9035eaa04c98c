"""Other schedulers as deciders of the simulator, by their published rules (decision 51)."""
