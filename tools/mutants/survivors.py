"""Mutants that no test can notice, and why: what they change makes no decision different."""

from __future__ import annotations

BOUND = "only a looser bound: what it does not rule out is tried, and does not help"
SLOWER = "the same answer for more work"

EXPLAINED: dict[str, str] = {
    "bounds._free_gpus: search.shape.grain > 1 -> search.shape.grain >= 1": BOUND,
    "bounds._free_gpus: 0 -> 1 in"
    " `return max((int(free[identity]) for identity in search.ids), default=0)`": BOUND,
    "bounds.PreemptibleQuota.most: rule.reclaim is Reclaim.NEVER or (rule.reclaim is "
    "Reclaim.ANY and (not claim.is_entitled(freed=most.get(leaf, 0)))) -> rule.reclaim is "
    "Reclaim.NEVER and (rule.reclaim is Reclaim.ANY and (not "
    "claim.is_entitled(freed=most.get(leaf, 0))))": BOUND,
    "bounds.PreemptibleQuota.most: 0 -> 1 in `if rule.reclaim is Reclaim.NEVER or "
    "(rule.reclaim is Reclaim.ANY and (not claim.is_entitled(freed=most.get(leaf, 0)))):`": BOUND,
    "bounds.PreemptibleQuota.most: False -> True in `if claim.reason(leaf=other, "
    "gpus=held.largest, lower_priority=False) is not None:`": (
        "it counts in the gang's own queue only"
    ),
    "bounds.could_suffice: False -> True in `return False`": BOUND,
    "preemption_policy.PreemptionClaim._is_permitted: for place, tops in "
    "enumerate(self._tops) if tops -> for place, tops in enumerate(self._tops)": (
        "without victims there, nothing is compared"
    ),
    "preemption_policy.PreemptionClaim._change: self._count += sign -> self._count -= sign": (
        "only whether it is 0 is asked"
    ),
    "preemption_policy.PreemptionClaim._may_reclaim: self._scales is not None and place > 1 "
    "-> self._scales is not None or place > 1": BOUND,
    "preemption_policy.PreemptionClaim.is_entitled: self._cohorts.usage[self._leaf] - freed +"
    " self._gpus -> self._cohorts.usage[self._leaf] - freed - self._gpus": BOUND,
    "preemption_policy.PreemptionClaim._may_reclaim: self._cohorts.borrowed(branch) - gpus ->"
    " self._cohorts.borrowed(branch) + gpus": BOUND,
    "preemption_policy.PreemptionClaim.reclaimable: min -> max in `return max(0, "
    "min((self._cohorts.borrowed(branch) for branch in off)) - 1 + largest)`": BOUND,
    "preemption_policy.PreemptionClaim._reclaim: 0 -> 1 in `place, off = "
    "(self._meeting(leaf), 0)`": (
        "the first branch of another queue is never on the gang's way: it is put in its place"
    ),
    "preemption_policy.PreemptionClaim._reclaim: self._excesses += taken.too_much - excess ->"
    " self._excesses -= taken.too_much - excess": "only whether it is 0 is asked",
    "preemption_policy.PreemptionClaim._reclaim: self._deep[place] += taken.below_quota - "
    "deep -> self._deep[place] -= taken.below_quota - deep": "only whether it is 0 is asked",
    "preemption_policy.PreemptionClaim._reclaim: tops.get(off, 0) + sign -> tops.get(off, 0) "
    "- sign": ("only whether it is 0 is asked"),
    "cohorts.CohortQuota.shortfall: 1 -> 2 in `low, high = (0, max(1, gpus))`": (
        "another start of the same search"
    ),
    "cohorts.CohortQuota.shortfall: 2 -> 3 in `low, high = (high, 2 * high)`": (
        "a larger step up, and more steps down again"
    ),
    "cohorts.CohortQuota.shortfall: max -> min in `low, high = (0, max(1, gpus))`": (
        "from 1 GPU or from all the search comes to the same end; for none nobody asks"
    ),
    "frontier.RoleMix._left: True -> False in `for request, pods in zip(self.requests, "
    "combination, strict=True):`": ("each role has one request"),
    "preemptor.Preemptor._choose: self._infeasible.add(question) -> pass": SLOWER,
    "quota_ledger.QuotaLedger.__init__: False -> True in `self._shares_rejections = False`": (
        SLOWER
    ),
    "quota_ledger.QuotaLedger._write: 1 -> 2 in `self.version += 1`": (
        "only whether it changed is asked"
    ),
    "role_placement.RolePlacer._few: True -> False in `return [BinChoice(identity=best, "
    "option=BinOption(roles=target, counts=True, room=pods))]`": (
        "only where main pods are balanced somebody asks which domains count"
    ),
    "search.Search._names: True -> False in"
    " `where.update(zip(positions, ordinals, strict=True))`": (
        "each position that is looked for gets one node"
    ),
    "search.Search._try: 0 -> 1 in `return choose_nodes(capacity=capacity, demand=demand, "
    "view=self.view, domain=(0, 0))`": ("no pods are left to be placed in that domain"),
    "what_if.fits_without_topology: 0 -> 1 in `loose = replace(search.demand, "
    "pods=search.vacant, slice_levels=(), anchors=(), required_depth=0, start_depth=0)`": (
        "nobody reads the depths of a demand that is only counted"
    ),
    "search.Search.roomy: return [] -> return None": "only whether there are any is asked",
    "search.Search.total: True -> False in `rows += list(zip(self.capacity.requests, "
    "self.demand.roles, strict=True))`": ("each role has one request"),
    "slicing._gather: 1 -> 2 in `return below[:1]`": (
        "a pool without nodes has one domain at each depth"
    ),
    "slicing.whole_slices: room > 0 -> room >= 0": "of none there are no whole slices either",
    "slots.SlotIndex.catch_up: len(changed) > max(_MANY, len(self.counted) // _MANY_OF) -> "
    "len(changed) >= max(_MANY, len(self.counted) // _MANY_OF)": (
        "counted anew or one by one, it is the same"
    ),
    "slots.SlotIndex.catch_up: for i in log[self.read:] if self.counted[i] -> for i in "
    "log[self.read:]": SLOWER,
    "slicing.anchored: kept and slice_levels -> kept or slice_levels": SLOWER,
    "surplus._in_leaving_order: 1 -> 2 in"
    " `ordinals = [view.ordinal_of.get(name, -1) for name in held.assignment]`": (
        "any number below 0 says that nobody knows the node"
    ),
    "surplus.has_surplus: gang.sizes[0] < held.size -> gang.sizes[0] <= held.size": (
        "of a gang of its smallest size all is the only part"
    ),
    "topology.build_tree: False -> True in"
    " `known.append(np.array([paths[i][depth - 1] != '' for i in begins] or [False]))`": (
        "a domain of no nodes has no room, known or not"
    ),
    "topology._starts: True -> False in"
    " `columns = list(zip(*paths, strict=True)) if len(paths) > 1 else []`": (
        "all paths have the same length"
    ),
    "eviction_simulation.EvictionSimulation.is_needed: return change is not None and "
    "self.slots(ids) + change < self.search.demand.pods -> return None": SLOWER,
    "eviction_simulation.EvictionSimulation.restore: 1 -> 2 in "
    "`self.search.view.shift(unit.allocation, sign=-1)`": ("only the sign is asked"),
    "victims._evict_cheapest: 1 -> 2 in `stride = max(1, len(ordered) // 64)`": (
        "who goes beyond the need, because the look comes later, comes back"
    ),
    "victims._exact: position + 1 -> position - 1": SLOWER,
    "victim_scopes._floor: floor * (1 - 1e-09) -> floor // (1 - 1e-09)": BOUND,
    "victim_scopes._floor: for i, amount in unit.amounts.items() if domain_of[i] == identity -> for"
    " i, amount in unit.amounts.items()": BOUND,
    "victims._in_order: 3 -> 4 in `return [unit for *_, unit in sorted(ranked, key=lambda "
    "entry: entry[:3])]`": ("no two have the same third entry"),
    "victims._in_scope: len(unit.amounts) > 1 -> len(unit.amounts) >= 1": SLOWER,
    "victim_scopes._least_rate: break -> continue": BOUND,
    "victim_scopes._least_rate: missing <= 0 -> missing < 0": "the next one adds nothing",
    "victims.least_victims: break -> continue": (
        "the scopes are in the order of their floors: all after the first too dear are as dear"
    ),
}
"""By change."""
