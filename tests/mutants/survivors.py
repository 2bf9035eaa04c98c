"""Mutants that no test can notice, and why: what they change makes no decision different."""

from __future__ import annotations

EXPLAINED: dict[str, str] = {}
"""By change."""
