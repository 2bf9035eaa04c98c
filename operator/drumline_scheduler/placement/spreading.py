"""Balanced placement: the fewest domains that hold the pods, with shares as even as possible.

The smallest share is as large as the fewest domains allow. Then the largest
share is as small as possible. The domains with the most slots allow both at once. Each share is
then given to the tightest domain that holds it, so that roomy domains stay free.

Example: 7 pods and domains with 5, 4 and 2 slots. Two domains are enough. The shares are 4 and 3.
"""

from __future__ import annotations

import numpy as np

from drumline_scheduler.placement.topology import Counts


def even_shares(
    *, ids: Counts, rooms: Counts, gpus: Counts, pods: int, unit: int
) -> list[tuple[int, int]]:
    """Return ids and shares; empty if the domains do not hold the pods. O(domains log domains).

    Args:
        ids: ids of the domains.
        rooms: slots of each domain, in whole units.
        gpus: free GPUs of each domain.
        pods: pods to be divided, in whole units.
        unit: number of pods that must stay together.
    """
    units, need = rooms // unit, pods // unit
    most = np.sort(units)[::-1]
    total = np.cumsum(most)
    if pods % unit or not total.size or total[-1] < need:
        return []
    # The fewest domains are those with the most slots.
    count = int(np.searchsorted(total, need)) + 1
    # The largest share first, each to the domain with the fewest free GPUs that holds it.
    left = sorted(zip(gpus.tolist(), units.tolist(), ids.tolist(), strict=True))
    shares: list[tuple[int, int]] = []
    for share in _level(most[:count].tolist(), need):
        best = next(domain for domain in left if domain[1] >= share)
        left.remove(best)
        shares.append((best[2], share * unit))
    return sorted(shares)


def _level(rooms: list[int], need: int) -> list[int]:
    """Return the most even shares that add up to `need`, largest first."""
    # The smallest bound on a share under which the domains hold everything.
    high = -(-need // len(rooms))
    while sum(min(room, high) for room in rooms) < need:
        high += 1
    shares = [min(room, high) for room in rooms]
    # Rounding may give a few units too many: take one each from shares at the bound.
    over = sum(shares) - need
    full = [i for i, share in enumerate(shares) if share == high]
    for i in full[len(full) - over :]:
        shares[i] -= 1
    return sorted(shares, reverse=True)
