"""Resources of pods that a queue pays for beside its jobs' members (`remaining_pods`)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import NamedTuple

from drumline.controller.informers.specs import SpecCache
from drumline.controller.nodes.conversion import GpuUnits, held_of, seconds_of
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.nodes.pods import ChargedPod
from drumline.controller.state.remaining_pods import RemainingPods
from drumline.controller.workloads.held import Account, RemainingPod, held_by_pods, unchanged
from drumline.controller.workloads.workloads import Workloads
from drumline.kube.views import PodView
from drumline_api.gpupool import GpuPoolSpec
from drumline_scheduler.model import Admitted, Node


class _KnownForeign(NamedTuple):
    """The resources of a foreign pod, and the values that they were computed from."""

    pod: PodView
    made_of: tuple[object, ...]
    held: tuple[Admitted, ...]


class HeldByPods:
    """Keeps the values of pods that have not changed since the last snapshot.

    Args:
        remaining: determines which account pays for a pod.
        nodes: the nodes and the pods on them.
        pools: the pools of the nodes.
        workloads: knows when pods of Jobs end. None if workloads are not admitted.
        guarded: pools in which foreign pods are evicted for jobs, because no other scheduler gets
            their places. None if it is not known. Then the queues' specs decide.
    """

    def __init__(
        self,
        remaining: RemainingPods,
        *,
        nodes: NodeCache,
        pools: SpecCache[GpuPoolSpec],
        workloads: Workloads | None,
        guarded: frozenset[str] | None,
    ) -> None:
        self._guarded = guarded
        self._remaining = remaining
        self._nodes = nodes
        self._pools = pools
        self._workloads = workloads
        self._of_jobs: dict[str, Admitted] = {}
        """Keyed by uid of the gang."""
        self._foreign: dict[str, _KnownForeign] = {}
        """Keyed by uid of the pod."""
        self._stays: dict[str, float] = {}
        """Time until which a foreign pod that could not be evicted is left alone, by uid."""

    def stays(self, pod_uid: str, *, until: float) -> None:
        """Exclude a foreign pod that cannot be evicted from being a victim until `until`."""
        self._stays[pod_uid] = until

    def held(self, *, now: float) -> list[Admitted]:
        """Return the resources that pods hold now. O(remaining pods + foreign pods with a queue).

        Call it after the nodes were computed, because they determine which pods these are.
        """
        self._stays = {uid: until for uid, until in self._stays.items() if until > now}
        # Phase 1: sort the charged pods by account. Foreign pods are accounts of their own.
        accounts: dict[str, Account] = {}
        pods: dict[str, list[RemainingPod]] = defaultdict(list)
        foreign: dict[str, _KnownForeign] = {}
        for node, charged in self._nodes.charged():
            pool, account = self._pools.get(node.pool), self._remaining.account(charged.pod)
            if pool is None or account is None:
                continue
            if account.is_foreign:
                # Without a guard, kube-scheduler would fill the place at once, so an eviction would
                # not help.
                if charged.pod.uid in self._stays or not self._is_guarded(node.pool):
                    account = replace(account, gives_back=False)
                foreign[charged.pod.uid] = self._of_foreign(node, charged, account, pool)
            else:
                accounts[account.uid] = account
                pods[account.uid].append(_remaining(node, charged, pool))
        # Phase 2: unchanged values stay the same objects. The scheduler recognises them by
        # identity.
        of_jobs = [
            held for uid, account in accounts.items() for held in held_by_pods(account, pods[uid])
        ]
        self._of_jobs = unchanged(of_jobs, before=self._of_jobs)
        self._foreign = foreign
        of_foreign = (held for known in foreign.values() for held in known.held)
        return [*self._of_jobs.values(), *of_foreign]

    def _end(self, pod: PodView) -> float | None:
        """Return the latest end of a foreign pod, by its own limit or its Job's."""
        ends = self._workloads.ends_at(pod) if self._workloads else None
        began = seconds_of(pod.start_time)
        if pod.deadline_seconds is None or began is None:
            return ends
        own = began + pod.deadline_seconds
        return own if ends is None else min(own, ends)

    def _is_guarded(self, pool: str) -> bool:
        return self._guarded is None or pool in self._guarded

    def _of_foreign(
        self, node: Node, charged: ChargedPod, account: Account, pool: GpuPoolSpec
    ) -> _KnownForeign:
        """Return the resources of a foreign pod, computed once for each of its versions.

        There may be thousands of foreign pods.
        """
        ends_at = self._end(charged.pod)
        how = (charged.leaving, charged.hanging, account, ends_at)
        made_of = (node.pool, pool.gpu_resource, pool.partitions, *how)
        known = self._foreign.get(charged.pod.uid)
        if known is not None and known.pod is charged.pod and known.made_of == made_of:
            return known
        before = {each.gang.uid: each for each in known.held} if known is not None else {}
        holds = replace(_remaining(node, charged, pool), ends_at=ends_at)
        held = unchanged(held_by_pods(account, [holds]), before=before)
        return _KnownForeign(pod=charged.pod, made_of=made_of, held=tuple(held.values()))


def _remaining(node: Node, charged: ChargedPod, pool: GpuPoolSpec) -> RemainingPod:
    return RemainingPod(
        name=charged.pod.name,
        node=node.name,
        pool=node.pool,
        requests=held_of(
            charged.pod.requests,
            units=GpuUnits.of(pool),
            offered=(name for name, _ in node.allocatable.extended),
        ),
        leaving=charged.leaving,
        hanging=charged.hanging,
    )
