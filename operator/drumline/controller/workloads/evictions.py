"""Evict foreign pods of a queue that borrows, for a job that may reclaim the quota.

Victims are chosen as for jobs (`scheduler.preemption`). This module calls the Eviction API, which
applies budgets and grace periods. A pod that stays is not a victim for a while, and the next cycle
looks for others. The while doubles each time for one job. Otherwise a budget that lets only one pod
go would cost its owner a pod each minute, without a benefit.

It happens only in guarded pools, and only once the job's nodes there have their taints. Elsewhere
kube-scheduler would give the place to the pod that its owner creates instead, which would be
evicted in turn.

A pod of an admitted Job, or another kind, takes the others along: the whole workload is suspended
again. A group of pods (`PodView.group`) leaves whole or not at all. If several pods must leave,
their budgets must let all of them go, and a dry run must admit each eviction, before the first pod
is evicted. Otherwise one pod would leave in vain beside another that stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from drumline.controller.workloads.held import ForeignPod, foreign_pod_of
from drumline.controller.workloads.suspension import PREEMPTED, WorkloadSuspension
from drumline.controller.workloads.workloads import Workloads
from drumline.kube import codec, reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import Conflict, KubeError, NotFound, NotLeader
from drumline.kube.kinds import POD_DISRUPTION_BUDGETS, PODS
from drumline.telemetry import logs
from drumline_api.objects import builtin
from drumline_scheduler.decisions import Preemption, Victim
from drumline_scheduler.guarded_nodes import new_nodes

log = logs.get("drumline.controller.workloads.evictions")

CHECK_SECONDS: Final = 5.0
"""Longest time of a check of one namespace. The cycle waits for it.

A namespace may have thousands of budgets, and each of them costs a request.
"""
STAYS_SECONDS: Final = 60.0
MAX_STAYS_SECONDS: Final = 3600.0
MAX_REFUSED: Final = 1000
"""Most jobs whose refusals are remembered."""
_budget_decoder: Final = msgspec.json.Decoder(builtin.DisruptionBudget)
_pod_decoder: Final = msgspec.json.Decoder(builtin.PodState)
_UNGUARDED: Final = frozenset({"Pending", "Succeeded", "Failed"})
"""Phases of pods that no budget protects."""


class _Budget(NamedTuple):
    """A PodDisruptionBudget: how many of its pods may go."""

    name: str
    allowed: int
    pods: frozenset[str]
    """Names of the pods that it selects and protects."""


class ForeignEvictions:
    """Evicts the foreign pods among the victims of preemptions.

    Args:
        client: fenced client for the API server.
        pools: names of the guarded pools.
        is_tainted: returns whether kube-scheduler is kept off a node.
        stays: receives the uid of a pod that is not a victim until a time.
        members: returns the pods of a group by uid of its gang, none for another gang.
        workloads: admitted workloads. None if workloads are not admitted.
        suspension: suspends workloads again.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        pools: Collection[str],
        is_tainted: Callable[[str], bool],
        stays: Callable[[str, float], None],
        members: Callable[[str], Collection[ForeignPod]],
        workloads: Workloads | None,
        suspension: WorkloadSuspension,
    ) -> None:
        self._client = client
        self._pools = pools
        self._is_tainted = is_tainted
        self._stays = stays
        self._members = members
        self._workloads = workloads
        self._suspension = suspension
        self._refusals: dict[str, int] = {}
        """Number of evictions in a row in which a pod stayed, by uid of the preemptor."""

    async def evict(self, preemption: Preemption, *, now: float) -> bool:
        """Evict the foreign pods among the victims. Return False if one stays.

        They are evicted before the jobs, and before the preemptor is nominated. So no job leaves
        for a preemption that a budget forbids. If one stays, the next cycle decides again about
        everything.
        """
        # Phase 1: check all before the first pod leaves. If one stays, all others stay, too.
        groups = [pods for victim in preemption.victims if (pods := self._pods_of(victim))]
        why_not, staying = self._why_not(preemption), list[ForeignPod]()
        whys = [""] * len(groups) if why_not else await self._why_stay(groups)
        for group, why in zip(groups, whys, strict=True):
            if why:
                pod_key = f"{group[0].namespace}/{group[0].name}"
                log.warning("foreign_pods_stay", pod=pod_key, job=preemption.key, why=why)
                staying += group
        # Phase 2: evict all at once. One that fails does not bring the others back.
        if not staying:
            pods = list(chain.from_iterable(groups))
            gone = await asyncio.gather(
                *(self._evict(pod, preemption=preemption, why=why_not) for pod in pods)
            )
            staying = [pod for pod, is_gone in zip(pods, gone, strict=True) if not is_gone]
        # Phase 3: exclude those that stay from the next cycles.
        refusals = self._refusals.pop(preemption.uid, 0)
        if not staying:
            return True
        while len(self._refusals) >= MAX_REFUSED:
            del self._refusals[next(iter(self._refusals))]
        self._refusals[preemption.uid] = refusals + 1
        pause = min(MAX_STAYS_SECONDS, STAYS_SECONDS * 2**refusals)
        for pod in staying:
            self._stays(pod.uid, now + pause)
        return False

    def _pods_of(self, victim: Victim) -> Sequence[ForeignPod]:
        """Return the pods of a victim that is a group or a single pod; none for a job."""
        single = foreign_pod_of(victim.key, victim.uid)
        return (single,) if single is not None else tuple(self._members(victim.uid))

    async def _why_stay(self, groups: Sequence[Sequence[ForeignPod]]) -> list[str]:
        """Return for each group why it could not leave beside the others, or ''.

        A pod that leaves alone is evicted without this check. A workload is suspended
        whole by one write, so its pods are not evicted.
        """
        if sum(map(len, groups)) < 2:
            return [""] * len(groups)
        # Budgets of one namespace must not keep the groups of another one.
        by_namespace: dict[str, list[int]] = {}
        for position, group in enumerate(groups):
            by_namespace.setdefault(group[0].namespace, []).append(position)
        checks = (
            self._why_stay_in(namespace, [groups[position] for position in positions])
            for namespace, positions in by_namespace.items()
        )
        whys = [""] * len(groups)
        for positions, own in zip(
            by_namespace.values(), await asyncio.gather(*checks), strict=True
        ):
            for position, why in zip(positions, own, strict=True):
                whys[position] = why
        return whys

    async def _why_stay_in(
        self, namespace: str, groups: Sequence[Sequence[ForeignPod]]
    ) -> list[str]:
        """Return for each group of a namespace why it could not leave beside the others, or ''."""
        evicted = [() if self._is_resumed(group) else group for group in groups]
        if not any(evicted):
            return [""] * len(groups)
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                budgets = await self._budgets_of(namespace, pods=sum(map(len, evicted)))
                # A dry run counts each pod alone, so it does not notice a budget for some of them.
                exceeded = _exceeded(evicted, budgets)
                rehearsed = await asyncio.gather(
                    *(
                        self._rehearse(() if why else own)
                        for own, why in zip(evicted, exceeded, strict=True)
                    )
                )
        except NotLeader:
            raise
        except TimeoutError:
            return [f"a check of its namespace takes more than {CHECK_SECONDS:g} s"] * len(groups)
        except (KubeError, codec.Undecodable) as error:
            return [str(error)] * len(groups)
        return [why or refused for why, refused in zip(exceeded, rehearsed, strict=True)]

    def _is_resumed(self, group: Iterable[ForeignPod]) -> bool:
        workloads = self._workloads
        return workloads is not None and any(workloads.resumed_with(pod.uid) for pod in group)

    async def _rehearse(self, group: Iterable[ForeignPod]) -> str:
        """Return why the API server would refuse to evict a pod of the group, or ''."""
        return next(filter(None, await asyncio.gather(*map(self._rehearse_pod, group))), "")

    async def _rehearse_pod(self, pod: ForeignPod) -> str:
        try:
            with suppress(NotFound, Conflict):
                await writes.evict(
                    self._client,
                    name=pod.name,
                    namespace=pod.namespace,
                    uid=pod.uid,
                    dry_run=True,
                )
        except NotLeader:
            raise
        except KubeError as error:
            return str(error)
        return ""

    async def _budgets_of(self, namespace: str, *, pods: int) -> list[_Budget]:
        """Return the PodDisruptionBudgets that may not let this number of pods go."""
        budgets: list[_Budget] = []
        for raw in await reads.list_all(self._client, POD_DISRUPTION_BUDGETS, namespace=namespace):
            stored = codec.decoded(_budget_decoder, raw)
            selector, allowed = stored.spec.selector, stored.status.disruptions_allowed
            if selector is None or allowed >= pods:
                continue
            selected = await reads.list_all(
                self._client, PODS, namespace=namespace, label_selector=str(selector)
            )
            pods_of = (codec.decoded(_pod_decoder, pod) for pod in selected)
            protected = frozenset(pod.metadata.name for pod in pods_of if _protects(stored, pod))
            budgets.append(_Budget(stored.metadata.name, allowed, protected))
        return budgets

    def _why_not(self, preemption: Preemption) -> str:
        """Return why no pod is evicted for a preemption, or ''."""
        if preemption.pool not in self._pools:
            return f"pool {preemption.pool} is not guarded"
        open_nodes = sorted(node for node in new_nodes(preemption) if not self._is_tainted(node))
        return f"node {open_nodes[0]} could not be tainted" if open_nodes else ""

    async def _evict(self, pod: ForeignPod, *, preemption: Preemption, why: str) -> bool:
        pod_key = f"{pod.namespace}/{pod.name}"
        workload = self._workloads.resumed_with(pod.uid) if self._workloads else None
        if workload is not None and not why:
            why = await self._suspension.suspend(
                workload, reason=PREEMPTED, why=f"{preemption.key} is entitled to its GPUs"
            )
        elif not why:
            try:
                await writes.evict(
                    self._client, name=pod.name, namespace=pod.namespace, uid=pod.uid
                )
            except NotLeader:
                raise
            except (NotFound, Conflict):
                pass
            except KubeError as error:  # a budget's 429, no right to evict
                why = str(error)
        if why:
            log.warning("foreign_pod_stays", pod=pod_key, job=preemption.key, why=why)
            return False
        log.info("foreign_pod_evicted", pod=pod_key, by=preemption.key)
        return True


def _protects(budget: builtin.DisruptionBudget, pod: builtin.PodState) -> bool:
    """Return whether the eviction of a pod counts against a budget that selects it.

    The rules are those of the API server (pkg/registry/core/pod/storage/eviction.go).
    """
    if pod.metadata.deletion_timestamp or pod.status.phase in _UNGUARDED:
        return False
    conditions = pod.status.conditions or ()
    if any(each.type == "Ready" and each.status == "True" for each in conditions):
        return True
    status = budget.status
    is_disrupted = status.current_healthy < status.desired_healthy or not status.desired_healthy
    return is_disrupted and budget.spec.unhealthy_pod_eviction_policy != "AlwaysAllow"


def _exceeded(groups: Sequence[Collection[ForeignPod]], budgets: Iterable[_Budget]) -> list[str]:
    """Return for each group the budget that does not let it go after those before it, or ''.

    All of them are in one namespace.
    """
    names = [frozenset(pod.name for pod in group) for group in groups]
    everyone = frozenset[str]().union(*names)
    # A dry run answers for a budget of one pod alone, and knows pods that no budget protects.
    left = {each: each.allowed for each in budgets if len(everyone & each.pods) > 1}
    whys: list[str] = []
    for group in names:
        going = {budget: len(group & budget.pods) for budget in left}
        short = next((budget for budget, count in going.items() if count > left[budget]), None)
        whys.append(
            f"PodDisruptionBudget {short.name} lets {left[short]} more of its pods go, not"
            f" {going[short]}"
            if short is not None
            else ""
        )
        if short is None:
            left = {budget: left[budget] - count for budget, count in going.items()}
    return whys
