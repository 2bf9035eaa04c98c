"""Resources of pods that a queue pays for beside its jobs' members (`remaining_pods`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from drumline.controller.informers.specs import SpecCache
from drumline.controller.nodes.conversion import GpuUnits, held_of, seconds_of
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.nodes.pods import ChargedPod, is_owned
from drumline.controller.state.remaining_pods import RemainingPods
from drumline.controller.workloads.held import (
    GROUP_SUFFIX,
    Account,
    ForeignPod,
    RemainingPod,
    account_of_group,
    held_by_group,
    held_by_pods,
    unchanged,
)
from drumline.controller.workloads.workloads import Workloads
from drumline.kube.views import PodView
from drumline_api.gpupool import GpuPoolSpec
from drumline_scheduler.model import Admitted, Node


class _KnownForeign(NamedTuple):
    """The resources of a foreign pod, and the values that they were computed from."""

    pod: PodView
    made_of: tuple[object, ...]
    held: tuple[Admitted, ...]


class _Member(NamedTuple):
    """A pod of a group, where it runs, and the account that pays for it."""

    node: Node
    charged: ChargedPod
    account: Account
    pool: GpuPoolSpec


class _KnownGroup(NamedTuple):
    """The resources of a group of foreign pods, and the values that they were computed from."""

    group: tuple[str, str]
    """Namespace and name."""
    made_of: tuple[object, ...]
    held: Admitted


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
        self._groups: dict[str, _KnownGroup] = {}
        """Groups of foreign pods, keyed by uid of the account."""
        self._stays: dict[str, float] = {}
        """Time until which a foreign pod that could not be evicted is left alone, by uid."""

    def stays(self, pod_uid: str, *, until: float) -> None:
        """Exclude a foreign pod that cannot be evicted from being a victim until `until`."""
        self._stays[pod_uid] = until

    def members(self, uid: str) -> tuple[ForeignPod, ...]:
        """Return the pods of a group of foreign pods by uid of its gang, or none."""
        known = self._groups.get(uid.removesuffix(f"/{GROUP_SUFFIX}"))
        if known is None:
            return ()
        # Pods without GPUs, on any node, leave with the others.
        return tuple(
            ForeignPod(namespace=pod.namespace, name=pod.name, uid=pod.uid)
            for pod in self._nodes.groups.get(known.group, {}).values()
            if not (pod.terminating or is_owned(pod))
        )

    def held(self, *, now: float) -> list[Admitted]:
        """Return the resources that pods hold now. O(remaining pods + foreign pods with a queue).

        Call it after the nodes were computed, because they determine which pods these are.
        """
        self._stays = {uid: until for uid, until in self._stays.items() if until > now}
        # Phase 1: sort the charged pods by account. Foreign pods are accounts of their own.
        accounts: dict[str, Account] = {}
        pods: dict[str, list[RemainingPod]] = defaultdict(list)
        foreign: dict[str, _KnownForeign] = {}
        groups: dict[tuple[str, str], list[_Member]] = defaultdict(list)
        for node, charged in self._nodes.charged():
            pool, account = self._pools.get(node.pool), self._remaining.account(charged.pod)
            if pool is None or account is None:
                continue
            if account.is_foreign:
                # Without a guard, kube-scheduler would fill the place at once, so an eviction would
                # not help.
                if charged.pod.uid in self._stays or not self._is_guarded(node.pool):
                    account = replace(account, gives_back=False)
                pod = charged.pod
                if pod.group:
                    member = _Member(node, charged, account, pool)
                    groups[pod.namespace, pod.group].append(member)
                    continue
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
        self._groups = dict(
            chain.from_iterable(
                self._of_group(members, foreign, namespace=namespace, group=group)
                for (namespace, group), members in groups.items()
            )
        )
        self._foreign = foreign
        of_foreign = (held for known in foreign.values() for held in known.held)
        of_groups = (known.held for known in self._groups.values())
        return [*self._of_jobs.values(), *of_groups, *of_foreign]

    def _of_group(
        self,
        members: Sequence[_Member],
        foreign: dict[str, _KnownForeign],
        *,
        namespace: str,
        group: str,
    ) -> Iterable[tuple[str, _KnownGroup]]:
        """Yield the gangs of a group by uid, one for each queue and pool.

        Pods that leave are added to `foreign`. The group may be evicted only if all its pods may,
        and if one gang has all of them.
        """
        parts: dict[tuple[str, str], list[_Member]] = defaultdict(list)
        for each in members:
            if each.charged.leaving or each.charged.hanging:
                uid = each.charged.pod.uid
                foreign[uid] = self._of_foreign(each.node, each.charged, each.account, each.pool)
            else:
                parts[each.account.queue, each.node.pool].append(each)
        gives_back = len(parts) == 1 and all(each.account.gives_back for each in members)
        for (_, pool), part in parts.items():
            account = account_of_group(
                part[0].account, namespace=namespace, group=group, pool=pool, gives_back=gives_back
            )
            ends = [self._end(each.charged.pod) for each in part]
            pods = tuple((each.charged.pod, each.node.name) for each in part)
            spec = part[0].pool
            made_of = (account, pods, tuple(ends), spec.gpu_resource, spec.partitions)
            known = self._groups.get(account.uid)
            if known is None or known.made_of != made_of:
                remaining = [
                    replace(_remaining(each.node, each.charged, spec), ends_at=end)
                    for each, end in zip(part, ends, strict=True)
                ]
                held = held_by_group(account, remaining)
                known = _KnownGroup((namespace, group), made_of, held)
            yield account.uid, known

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
            offered={name for name, _ in node.allocatable.extended},
        ),
        leaving=charged.leaving,
        hanging=charged.hanging,
    )
