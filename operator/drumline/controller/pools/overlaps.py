"""GpuPools that select the same nodes. Each pool reports the nodes and the other pool.

A node belongs to the oldest pool that selects it, so a new pool takes no node from a pool in use.
Both pools report it, because only the platform team knows which selector is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from drumline.lifecycle.model.conditions import Statement
from drumline_api.conditions import PlatformReason

SHOWN: Final = 3
"""Most nodes that a message names for each other pool."""


def overlap_of(pool: str, *, contested: Mapping[str, Sequence[str]]) -> Statement | None:
    """Return the condition of a pool about its overlaps, or None without any.

    Args:
        pool: name of the pool.
        contested: for each node the pools that select it; the node's own pool is first.

    Example: the selectors of old and new both match n1. old: "GpuPool new selects n1 too; old has
    them, because it is the older pool: narrow the nodeSelector of one of them".
    """
    theirs: dict[str, list[str]] = {}
    for node in sorted(contested):
        if pool in contested[node]:
            for other in contested[node]:
                if other != pool:
                    theirs.setdefault(other, []).append(node)
    if not theirs:
        return None
    parts = [
        f"GpuPool {other} selects {_named(nodes)} too; {_owner(pool, other, contested[nodes[0]])}"
        " has them, because it is the older pool"
        for other, nodes in sorted(theirs.items())
    ]
    text = f"{'. '.join(parts)}: narrow the nodeSelector of one of them"
    return Statement(truth="True", reason=PlatformReason.NODES_OVERLAP, message=text)


def _owner(pool: str, other: str, selected_by: Sequence[str]) -> str:
    return min(pool, other, key=selected_by.index)


def _named(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else ""
    return ", ".join(nodes[:SHOWN]) + more
