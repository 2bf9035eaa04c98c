"""The inverse of a change to a view or an account, as a value."""

from __future__ import annotations

from collections.abc import Callable

Undo = Callable[[], None]
"""Restores what a change altered; called at most once, the latest change first."""
