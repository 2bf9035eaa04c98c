"""Gather the facts that a start is checked against before other gangs are evicted or moved.

A check reads the claims that the job names, and the namespace's ResourceQuotas and LimitRanges of
claims. Dry runs create one pod of each kind and the objects beside them, and look for ConfigMaps
and Secrets. It is made for a gang that is about to evict or move others, not for each waiting gang
of a cycle. Objects that RBAC forbids to read are left out. `lifecycle.plan.start_check` decides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, Protocol

import msgspec

from drumline.controller.nodes.pods import is_owned
from drumline.controller.reconciler.claims import ServesOneNode, any_node, prepare_claims
from drumline.controller.reconciler.dry_runs import AdmittedPod, DryRuns
from drumline.kube import reads
from drumline.kube.client import KubeClient
from drumline.kube.device_codec import CHANNEL_CLASS
from drumline.kube.errors import Forbidden, KubeError, NotLeader
from drumline.kube.kinds import LIMIT_RANGES, PERSISTENT_VOLUME_CLAIMS, RESOURCE_QUOTAS
from drumline.kube.pod_requests import Amounts, pod_limits, pod_requests
from drumline.kube.quantity import CPU, amount
from drumline.kube.silences import Silences
from drumline.kube.views import Key, PodView
from drumline.lifecycle.manifests.containers import with_limits
from drumline.lifecycle.manifests.named_objects import (
    NamedObject,
    claims_of,
    named_objects,
    pull_secrets,
)
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.manifests.pods import pod_manifests
from drumline.lifecycle.model.hardware import PoolGpus
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import indices_by_pool, members_of, nodes_by_pool
from drumline.lifecycle.model.roles import gpus_of, role_pod
from drumline.lifecycle.plan.claim_limits import (
    ClaimLimits,
    ClaimOutsideLimits,
    PlannedClaim,
    claim_outside_limits,
)
from drumline.lifecycle.plan.quota_headroom import (
    PlannedObjects,
    PlannedPods,
    QuotaFacts,
    QuotaScope,
    device_claim_amounts,
    object_amounts,
    volume_claim_amounts,
)
from drumline.lifecycle.plan.start_check import (
    StartDoubt,
    StartFacts,
    StartRefusal,
    refusal_of_start,
)
from drumline.telemetry import logs
from drumline_api.objects import builtin
from drumline_contract import pod_name

log = logs.get("drumline.controller.reconciler.start_check")

Json = dict[str, Any]
UNCHECKED_SECONDS: Final = 60.0
"""Time after which a start is checked again of which nothing was learned."""
CHECK_SECONDS: Final = 5.0
"""Longest time of a check. The cycle waits for it, and so do the jobs of other namespaces.

After a check that took longer, no start of its namespace is checked for `UNCHECKED_SECONDS`.
"""
MAX_PROMISED: Final = 64
"""Most jobs that start before and are counted against a ResourceQuota."""
MAX_KNOWN: Final = 1024
"""Most jobs whose pods are remembered."""
_TOO_SLOW: Final = (
    f"the API server needs more than {CHECK_SECONDS:g} s for a check of its namespace"
)


class LearnRequests(Protocol):
    """Keeps what admission adds to the pods of a job."""

    def __call__(self, job: Job, *, index: int, requests: Mapping[str, int]) -> bool:
        """Return whether a pod requests more than is known of its job."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _PodKind:
    """Equal pods of a job."""

    index: int
    """Index of one of them."""
    pod: Json
    """Manifest of one of them."""
    count: int
    claims: Amounts
    """Amounts of the claims that are made for each pod, by names of a quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownPods:
    """The pods of a job beside the one that is checked, and what they depend on."""

    job: Job
    gpus: tuple[PoolGpus | None, ...]
    pods: list[PlannedPods]


class StartCheck:
    """Checks starts.

    Args:
        client: fenced client for the API server. A dry run is a write.
        pods: platform settings of pods.
        gpus_of: returns the GPUs of a pool, or None while the pool is not known.
        terminates: returns whether a namespace is being deleted.
        serves_one_node: tells a claim that several nodes cannot use at the same time.
        default_class: returns the name of the cluster's default StorageClass, or ''.
        pod_of: returns a pod in the cache, or None.
        learn: keeps the requests of an admitted pod with this index, and returns whether they are
            larger than known.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        pods: PodSettings,
        gpus_of: Callable[[str], PoolGpus | None],
        terminates: Callable[[str], bool],
        serves_one_node: ServesOneNode = any_node,
        default_class: Callable[[], str] = str,
        pod_of: Callable[[Key], PodView | None] = lambda _: None,
        learn: LearnRequests | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._silences = Silences(seconds=UNCHECKED_SECONDS, clock=clock)
        self._client = client
        self._dry_runs = DryRuns(client, operator_namespace=pods.operator_namespace)
        self._pods = pods
        self._gpus_of = gpus_of
        self._terminates = terminates
        self._serves_one_node = serves_one_node
        self._default_class = default_class
        self._pod_of = pod_of
        self._learn = learn
        self._known_pods: dict[tuple[int, bool], _KnownPods] = {}

    async def refusal(
        self,
        job: Job,
        *,
        replaces: bool = False,
        leaving: Iterable[Job] = (),
        beside: Iterable[Job] = (),
        promised: Iterable[Job] = (),
    ) -> StartRefusal | StartDoubt | None:
        """Return why the start of a job would be refused or could not be checked, or None.

        Args:
            job: the job with the assignment that it would start with.
            replaces: whether pods of the job end before these are created.
            leaving: jobs of its namespace that leave for it, with the places that they release.
            beside: jobs of its namespace that start together with it.
            promised: jobs of its namespace that start before it.

        Raises:
            NotLeader: this process may not write any more.
        """
        if job.namespace in self._silences:
            return _doubt(job, _TOO_SLOW)
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                facts = await self._facts(
                    job, replaces=replaces, leaving=leaving, beside=beside, promised=promised
                )
        except NotLeader:
            raise
        except TimeoutError:
            self._silences.add(job.namespace)
            return _doubt(job, _TOO_SLOW)
        # Without an answer, nobody is evicted: the start would probably meet the same error.
        except (KubeError, ValueError) as error:
            return _doubt(job, " ".join(str(error).split()))
        refusal = refusal_of_start(job, facts)
        if refusal is not None:
            log.warning("start_would_be_refused", job=job.key, why=refusal.message)
        return refusal

    async def _facts(
        self,
        job: Job,
        *,
        replaces: bool,
        leaving: Iterable[Job],
        beside: Iterable[Job],
        promised: Iterable[Job],
    ) -> StartFacts:
        # Phase 1: the cheapest facts. A fact that decides alone saves the requests after it.
        if self._terminates(job.namespace):
            return StartFacts(namespace_terminates=True)
        taken = "" if replaces else self._taken_name(job)
        kinds = self._kinds_of_pods(job)
        claim = await prepare_claims(
            self._client,
            job,
            serves_one_node=self._serves_one_node,
            of_pods=claims_of(kind.pod for kind in kinds),
            default_class=self._default_class(),
            binds=False,
        )
        if taken or claim is not None or not kinds:
            return StartFacts(taken_name=taken, claim=claim)
        quotas, before = await self._quotas(job), list(promised)
        if quotas and len(before) > MAX_PROMISED:
            return StartFacts(uncounted=len(before))
        # Phase 2: one pod of each kind, the objects beside them, and those that they name.
        pods = [kind.pod for kind in kinds]
        admitted = await asyncio.gather(*(self._dry_runs.pod(job, pod) for pod in pods))
        refused_child = await self._dry_runs.refused_child(job)
        secrets = [NamedObject("Secret", name) for name in pull_secrets(pods)]
        objects = await self._dry_runs.find(job, [*secrets, *named_objects(pods)])
        # Phase 3: the whole gang against the quotas.
        together = list(beside)
        own = [_planned(kind, each) for kind, each in zip(kinds, admitted, strict=True)]

        def like(jobs: Iterable[Job]) -> tuple[PlannedPods, ...]:
            if not quotas:
                return ()
            each = (self._like(admitted[0], kinds[0], other) for other in jobs)
            return tuple(chain.from_iterable(each))

        return StartFacts(
            missing=objects.missing,
            unknown=objects.unknown,
            pull_secrets=tuple(secret.name for secret in secrets),
            refusal=next((each.refusal for each in admitted if each.refusal), ""),
            child_refusal=refused_child,
            claim_outside=await self._claim_outside(job, pods),
            quotas=quotas,
            requested=PlannedObjects(
                pods=(*own, *like(together)), objects=_new_secrets([job, *together])
            ),
            promised=PlannedObjects(pods=like(before), objects=_new_secrets(before)),
            freed=PlannedObjects(pods=like(leaving)),
            replaces=replaces,
            requests_more=self._requests_more(job, kinds, own),
        )

    def _requests_more(
        self, job: Job, kinds: Iterable[_PodKind], planned: Iterable[PlannedPods]
    ) -> bool:
        """Return whether admission adds requests that the gang was not placed with."""
        learn = self._learn
        if learn is None:
            return False
        pairs = zip(kinds, planned, strict=True)
        news = [learn(job, index=kind.index, requests=pods.requests) for kind, pods in pairs]
        return any(news)

    def _taken_name(self, job: Job) -> str:
        """Return the name of a member's pod that a pod of no job has, or ''. O(members)."""
        for member in members_of(job.status):
            name = pod_name(job.name, member.index, member.pod_generation)
            pod = self._pod_of(Key(job.namespace, name))
            if pod is not None and not pod.terminating and not is_owned(pod):
                return name
        return ""

    def _kinds_of_pods(self, job: Job) -> list[_PodKind]:
        """Return each kind of pods of a job: by pool, its main pods and those of each role."""
        kinds: list[_PodKind] = []
        members = [member.index for member in members_of(job.status)]
        for pool, indices in indices_by_pool(job.status, members).items():
            gpus = self._gpus_of(pool)
            if gpus is None:
                continue
            by_role: dict[str, list[int]] = {}
            for index in indices:
                role = role_pod(job.spec, index)
                by_role.setdefault("" if role is None else role.role.name, []).append(index)
            for same in by_role.values():
                made = pod_manifests(job, indices=same[:1], gpus=gpus, settings=self._pods)
                claims = self._claims_of(job, made[0], index=same[0], gpus=gpus)
                kinds.append(_PodKind(index=same[0], pod=made[0], count=len(same), claims=claims))
        return kinds

    def _claims_of(self, job: Job, pod: Json, *, index: int, gpus: PoolGpus) -> Amounts:
        """Return the amounts of the claims that are made for one pod."""
        total: Amounts = {}

        def add(amounts: Amounts) -> None:
            for name, each in amounts.items():
                total[name] = total.get(name, 0) + each

        for claim in _planned_claims(pod):
            named = claim.storage_class
            add(
                volume_claim_amounts(
                    storage_class=self._default_class() if named is None else named,
                    storage_bytes=claim.storage_bytes,
                )
            )
        devices = gpus_of(job.spec, (index,))
        if gpus.by_claims and devices:
            add(device_claim_amounts(device_class=gpus.device_class, devices=devices))
        # A pod has no other claims for devices in its spec.
        for _ in pod["spec"].get("resourceClaims", ()):
            add(device_claim_amounts(device_class=CHANNEL_CLASS, devices=1))
        return total

    def _like(self, seen: AdmittedPod, kind: _PodKind, job: Job) -> list[PlannedPods]:
        """Return the pods of another job, with what admission adds to a pod that was seen."""
        planned = _spec(kind.pod, own_limits=seen.own_limits)
        admitted = seen.spec or planned
        requests = _added(pod_requests(admitted), pod_requests(planned))
        limits = _added(pod_limits(admitted), pod_limits(planned))
        return [
            replace(
                each,
                requests=_sum(each.requests, requests),
                limits=_sum(each.limits, limits),
            )
            for each in self._pods_of(job, own_limits=seen.own_limits)
        ]

    def _pods_of(self, job: Job, *, own_limits: bool) -> list[PlannedPods]:
        """Return the pods of another job. Many checks of a cycle ask for those of the same jobs."""
        gpus = tuple(map(self._gpus_of, nodes_by_pool(job.status)))
        known = self._known_pods.get((id(job), own_limits))
        # The entry keeps its job, so no other job has the same id.
        if known is not None and known.job is job and known.gpus == gpus:
            return known.pods
        pods = [
            _pods(each, spec, requests=pod_requests(spec), limits=pod_limits(spec))
            for each in self._kinds_of_pods(job)
            for spec in (_spec(each.pod, own_limits=own_limits),)
        ]
        if len(self._known_pods) >= MAX_KNOWN:
            self._known_pods.clear()
        self._known_pods[id(job), own_limits] = _KnownPods(job=job, gpus=gpus, pods=pods)
        return pods

    async def _claim_outside(self, job: Job, pods: Iterable[Json]) -> ClaimOutsideLimits | None:
        claims = [claim for pod in pods for claim in _planned_claims(pod)]
        if not claims:
            return None
        try:
            items = await reads.list_all(self._client, LIMIT_RANGES, namespace=job.namespace)
        except Forbidden as error:
            log.warning("limits_not_readable", job=job.key, error=error.message)
            return None
        decoded = (msgspec.json.decode(item, type=builtin.LimitRange) for item in items)
        return claim_outside_limits(claims, (bound for each in decoded for bound in _bounds(each)))

    async def _quotas(self, job: Job) -> tuple[QuotaFacts, ...]:
        try:
            items = await reads.list_all(self._client, RESOURCE_QUOTAS, namespace=job.namespace)
        except Forbidden as error:
            log.warning("quotas_not_readable", job=job.key, error=error.message)
            return ()
        decoded = (msgspec.json.decode(item, type=builtin.ResourceQuota) for item in items)
        return tuple(map(_quota_facts, decoded))


def _doubt(job: Job, why: str) -> StartDoubt:
    log.warning("start_not_checked", job=job.key, error=why)
    return StartDoubt(message=f"its start could not be checked: {why}", seconds=UNCHECKED_SECONDS)


def _new_secrets(jobs: Sequence[Job]) -> dict[str, int]:
    """Return the amounts of the token Secrets of jobs that start for the first time."""
    first = [job for job in jobs if job.has_agents and (job.status.generation or 1) == 1]
    return object_amounts("secrets", len(first)) if first else {}


def _planned(kind: _PodKind, admitted: AdmittedPod) -> PlannedPods:
    spec = admitted.spec or _spec(kind.pod, own_limits=admitted.own_limits)
    return _pods(kind, spec, requests=pod_requests(spec), limits=pod_limits(spec))


def _pods(
    kind: _PodKind, spec: builtin.PodSpec, *, requests: Amounts, limits: Amounts
) -> PlannedPods:
    return PlannedPods(
        count=kind.count,
        requests=requests,
        limits=limits,
        priority_class=spec.priority_class_name or "",
        has_deadline=spec.active_deadline_seconds is not None,
        claims=kind.claims,
    )


def _spec(pod: Json, *, own_limits: bool) -> builtin.PodSpec:
    return msgspec.convert((with_limits(pod) if own_limits else pod)["spec"], builtin.PodSpec)


def _added(admitted: Amounts, planned: Amounts) -> Amounts:
    more = {name: count - planned.get(name, 0) for name, count in admitted.items()}
    return {name: count for name, count in more.items() if count > 0}


def _sum(requests: Mapping[str, int], added: Amounts) -> Amounts:
    return {**requests, **{name: requests.get(name, 0) + more for name, more in added.items()}}


def _quota_facts(quota: builtin.ResourceQuota) -> QuotaFacts:
    selector = quota.spec.scope_selector
    selected = (selector.match_expressions or ()) if selector is not None else ()
    return QuotaFacts(
        name=quota.metadata.name,
        hard=_amounts(quota.status.hard or quota.spec.hard),
        used=_amounts(quota.status.used),
        scopes=(
            *(QuotaScope(name=name) for name in quota.spec.scopes or ()),
            *(
                QuotaScope(
                    name=each.scope_name, operator=each.operator, values=tuple(each.values or ())
                )
                for each in selected
            ),
        ),
    )


def _planned_claims(pod: Json) -> Iterator[PlannedClaim]:
    """Yield the claims of a pod's ephemeral volumes."""
    for volume in pod["spec"].get("volumes", []):
        if "ephemeral" in volume:
            spec = volume["ephemeral"]["volumeClaimTemplate"]["spec"]
            storage = spec["resources"]["requests"]["storage"]
            yield PlannedClaim(
                volume=volume["name"],
                storage_class=spec.get("storageClassName"),
                storage_bytes=amount("storage", str(storage)),
            )


def _bounds(limits: builtin.LimitRange) -> Iterator[ClaimLimits]:
    for each in limits.spec.limits or ():
        if each.type == PERSISTENT_VOLUME_CLAIMS.kind:
            yield ClaimLimits(
                name=limits.metadata.name,
                least=_amounts(each.min).get("storage"),
                most=_amounts(each.max).get("storage"),
            )


def _amounts(quantities: builtin.Quantities | None) -> dict[str, int]:
    """Return amounts by the quota's resource names. CPU in thousandths of a core."""
    return {
        name: amount(CPU if name.rpartition(".")[2] == CPU else name, str(each))
        for name, each in (quantities or {}).items()
    }
