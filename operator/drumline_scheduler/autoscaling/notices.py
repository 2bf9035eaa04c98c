"""Choose the running gangs that request nodes at the notice, before their nodes are gone.

A spot node ends two minutes after its notice, and a new node takes about as long to boot. So a gang
without other slots requests at the notice what it would request once broken:

    notice ──► nodes are requested ──► they come in time: the gang is relocated, unbroken
      │                         │
      │                         └────► its nodes go first: the broken gang has the same request
      └─────► withdrawn: the request ends

On hypothetical clusters such a gang is broken already (`after_losses`). Its queue pays for all its
places, so a request charges nothing. Nothing is evicted for it.

These gangs request nothing, because their loss would be answered in another way: elastic gangs that
may shrink, surplus gangs, and all gangs if repairs may preempt. Nor do gangs on cordoned nodes,
which may stay for days.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from drumline_scheduler.model import Admitted, Policy, Snapshot


def noticed_gangs(snapshot: Snapshot, *, policy: Policy) -> dict[str, Admitted]:
    """Return by uid the whole gangs that may request nodes because their own go. O(admitted)."""
    if policy.repairs_preempt:
        return {}
    going = (held for held in snapshot.admitted if held.must_move)
    return {held.gang.uid: held for held in going if _would_wait(held)}


def _would_wait(held: Admitted) -> bool:
    """Return whether a gang is whole, and would wait for nodes once its own are gone."""
    if not held.displaced or held.nominated:
        return False
    if held.lost or held.leaving or held.giving_up or held.gang.surplus_of:
        return False
    return not held.gang.sizes or held.size == held.gang.sizes[0]


def after_losses(snapshot: Snapshot, uids: Collection[str]) -> Snapshot:
    """Return the cluster in which these gangs have lost their displaced positions."""
    if not uids:
        return snapshot
    return replace(
        snapshot,
        admitted=tuple(
            replace(held, lost=held.vacant, displaced=frozenset())
            if held.gang.uid in uids
            else held
            for held in snapshot.admitted
        ),
    )
