"""Runs `drumline list`, `queue`, `why`, `nodes`, `share` and `usage`: rows of the cluster."""
