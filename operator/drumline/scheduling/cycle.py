"""One scheduling cycle."""

from __future__ import annotations

from collections.abc import Iterable

from drumline.scheduling.decisions import Decisions
from drumline.scheduling.model import Gang, Policy, Snapshot


def decide(
    *,
    snapshot: Snapshot,
    pending: Iterable[Gang],
    policy: Policy,
    now: float,
) -> Decisions:
    """Decide which waiting gangs start now, and where."""
    raise NotImplementedError
