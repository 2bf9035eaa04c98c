"""Set the verdicts on nodes in the node cache. Only changed nodes are counted again."""

from __future__ import annotations

from collections.abc import Mapping

from drumline.controller.nodes.nodes import NodeCache
from drumline_scheduler.disruption.node_scores import NodeStanding


def judge(nodes: NodeCache, standings: Mapping[str, NodeStanding]) -> bool:
    """Store the verdicts and return whether the scheduler may decide differently now.

    Args:
        nodes: the cache.
        standings: verdicts on all nodes with evidence against them.
    """
    before, nodes.standings = nodes.standings, standings
    changed = {
        name for name in before.keys() | standings.keys() if before.get(name) != standings.get(name)
    }
    nodes.recount(changed)
    return bool(changed)
