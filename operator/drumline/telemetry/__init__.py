"""What the operator tells about itself: structured logs, metrics, probes. Shells only."""
