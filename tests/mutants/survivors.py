"""Mutants that no test can notice, and why: what they change makes no decision different."""

from __future__ import annotations

EXPLAINED: dict[str, str] = {
    "victims.least_victims: break -> continue": (
        "the scopes are in the order of their floors: all after the first too dear are as dear"
    ),
}
"""By change."""
