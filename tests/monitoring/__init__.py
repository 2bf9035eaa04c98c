"""Metrics, boards and alerts on a real Prometheus: what is shown, what fires, what stays silent."""
