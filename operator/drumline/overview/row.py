"""What all rows of the overview are."""

from __future__ import annotations

import msgspec


class OverviewRow(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False
):
    """Base of all rows."""
