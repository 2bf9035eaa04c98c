"""Observability of the operator: structured logs, metrics, probes."""
