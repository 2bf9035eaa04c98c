"""Gather the facts that a start is checked against before other gangs are evicted or moved.

A check is a dry run of one pod, the list of the namespace's ResourceQuotas, and a read of each
claim and image pull secret that the job names. It is made for a gang that is about to evict or move
others, not for each waiting gang of a cycle. Objects that RBAC forbids to read are left out.
`lifecycle.plan.start_check` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from drumline.controller.reconciler.claims import ServesOneNode, any_node, prepare_claims
from drumline.kube import reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import Forbidden, Invalid, KubeError, NotFound, NotLeader
from drumline.kube.kinds import PODS, RESOURCE_QUOTAS, SECRETS
from drumline.kube.pod_requests import Amounts, pod_limits, pod_requests
from drumline.kube.quantity import CPU, amount
from drumline.lifecycle.manifests.containers import with_limits
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.manifests.pods import pod_manifests
from drumline.lifecycle.model.hardware import PoolGpus
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import members_of
from drumline.lifecycle.model.roles import role_pod
from drumline.lifecycle.plan.start_check import (
    QuotaFacts,
    StartFacts,
    StartRefusal,
    quota_amounts,
    refusal_of_start,
    wants_limits,
)
from drumline.telemetry import logs
from drumline_api.objects import builtin

log = logs.get("drumline.controller.reconciler.start_check")

Json = dict[str, Any]
_MAX_WORDS: Final = 500


class StartCheck:
    """Checks starts.

    Args:
        client: fenced client for the API server. A dry run is a write.
        pods: platform settings of pods.
        gpus_of: returns the GPUs of a pool, or None while the pool is not known.
        terminates: returns whether a namespace is being deleted.
        serves_one_node: tells a claim that several nodes cannot use at the same time.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        pods: PodSettings,
        gpus_of: Callable[[str], PoolGpus | None],
        terminates: Callable[[str], bool],
        serves_one_node: ServesOneNode = any_node,
    ) -> None:
        self._serves_one_node = serves_one_node
        self._client = client
        self._pods = pods
        self._gpus_of = gpus_of
        self._terminates = terminates
        self._reads_secrets = True

    async def refusal(
        self,
        job: Job,
        *,
        replaces: bool = False,
        leaving: Iterable[Job] = (),
        beside: Iterable[Job] = (),
    ) -> StartRefusal | None:
        """Return why the start of a job would be refused, or None.

        Args:
            job: the job with the assignment that it would start with.
            replaces: whether pods of the job end before these are created.
            leaving: jobs of its namespace that leave for it, with the places that they release.
            beside: jobs of its namespace that start together with it.

        Raises:
            NotLeader: this process may not write any more.
        """
        try:
            facts = await self._facts(job, replaces=replaces, leaving=leaving, beside=beside)
        except NotLeader:
            raise
        except (KubeError, ValueError) as error:  # it says nothing about the job
            log.warning("start_not_checked", job=job.key, error=str(error))
            return None
        refusal = refusal_of_start(job, facts)
        if refusal is not None:
            log.warning("start_would_be_refused", job=job.key, why=refusal.message)
        return refusal

    async def _facts(
        self, job: Job, *, replaces: bool, leaving: Iterable[Job], beside: Iterable[Job]
    ) -> StartFacts:
        # The cheapest facts first. A fact that decides alone saves the requests after it.
        if self._terminates(job.namespace):
            return StartFacts(namespace_terminates=True)
        claim = await prepare_claims(
            self._client, job, serves_one_node=self._serves_one_node, binds=False
        )
        kinds = self._kinds_of_pods(job)
        if claim is not None or not kinds:
            return StartFacts(claim=claim)
        # One pod for all: pods of a job differ in numbers that quotas add up.
        refusal, admitted, own_limits = await self._dry_run(job, kinds[0][1])

        def specs_of(pods: list[tuple[int, Json]]) -> list[tuple[int, builtin.PodSpec]]:
            return _specs((n, with_limits(pod)) for n, pod in pods) if own_limits else _specs(pods)

        specs = specs_of(kinds)
        planned = specs[0][1]
        seen = planned if admitted is None else admitted
        # Admission adds sidecars, overhead and the LimitRange's defaults, for leaving pods too.
        requests = _added(pod_requests(seen), pod_requests(planned))
        limits = _added(pod_limits(seen), pod_limits(planned))

        def amounts(pods: Iterable[tuple[int, builtin.PodSpec]]) -> Amounts:
            return quota_amounts(
                (count, _sum(pod_requests(spec), requests), _sum(pod_limits(spec), limits))
                for count, spec in pods
            )

        # Quota that leaving jobs of the namespace release counts as free.
        going = [each for other in leaving for each in specs_of(self._kinds_of_pods(other))]
        with_it = [each for other in beside for each in specs_of(self._kinds_of_pods(other))]
        return StartFacts(
            missing_secrets=await self._missing_secrets(job, kinds[0][1]),
            refusal=refusal,
            quotas=await self._quotas(job, seen),
            requested=amounts([*specs, *with_it]),
            freed=amounts(going),
            replaces=replaces,
        )

    def _kinds_of_pods(self, job: Job) -> list[tuple[int, Json]]:
        """Return one pod of each role and one main pod, each with the number of such pods."""
        indices: dict[str, list[int]] = {}
        for member in members_of(job.status):
            role = role_pod(job.spec, member.index)
            indices.setdefault("" if role is None else role.role.name, []).append(member.index)
        assignment = job.status.assignment
        gpus = None if assignment is None else self._gpus_of(assignment.gpu_pool)
        if gpus is None:
            return []
        made = [
            (
                len(same_role),
                pod_manifests(job, indices=same_role[:1], gpus=gpus, settings=self._pods),
            )
            for same_role in indices.values()
        ]
        return [(count, pods[0]) for count, pods in made if pods]

    async def _dry_run(self, job: Job, pod: Json) -> tuple[str, builtin.PodSpec | None, bool]:
        """Return the API server's rejection of a pod, or the pod's spec as it is admitted.

        The third value is true if the pod needs limits of its own.
        """
        metadata = {key: value for key, value in pod["metadata"].items() if key != "name"}
        metadata["generateName"] = f"{job.name}-"  # the name may still be a leaving pod's
        body = {**pod, "metadata": metadata}
        try:
            answer, own_limits = await self._admitted(body, namespace=job.namespace)
        # A webhook without support for dry runs says nothing about the job.
        except (Forbidden, Invalid) as error:
            if "does not support dry run" in error.message:
                return "", None, False
            return error.message[:_MAX_WORDS], None, False
        return "", msgspec.json.decode(answer, type=builtin.Pod).spec, own_limits

    async def _admitted(self, body: Json, *, namespace: str) -> tuple[bytes, bool]:
        """Return the pod as it would be admitted, and whether it needs limits of its own."""
        try:
            return await writes.dry_run(self._client, PODS, body=body, namespace=namespace), False
        except Invalid as error:
            if not wants_limits(error.message):
                raise
        body = with_limits(body)
        return await writes.dry_run(self._client, PODS, body=body, namespace=namespace), True

    async def _quotas(self, job: Job, spec: builtin.PodSpec) -> tuple[QuotaFacts, ...]:
        try:
            items = await reads.list_all(self._client, RESOURCE_QUOTAS, namespace=job.namespace)
        except Forbidden as error:
            log.warning("quotas_not_readable", job=job.key, error=error.message)
            return ()
        decoded = (msgspec.json.decode(item, type=builtin.ResourceQuota) for item in items)
        return tuple(_quota_facts(quota) for quota in decoded if _counts(quota, spec))

    async def _missing_secrets(self, job: Job, pod: Json) -> tuple[str, ...]:
        """Return the image pull secrets that do not exist, if secrets may be read."""
        missing: list[str] = []
        for name in _pull_secrets(pod) if self._reads_secrets else ():
            try:
                await reads.get(self._client, SECRETS, name=name, namespace=job.namespace)
            except NotFound:
                missing.append(name)
            # Forbidden for one secret means forbidden for all, so do not try again.
            except Forbidden:
                self._reads_secrets = False
                break
        return tuple(missing)


def _specs(kinds: Iterable[tuple[int, Json]]) -> list[tuple[int, builtin.PodSpec]]:
    return [(count, msgspec.convert(pod["spec"], builtin.PodSpec)) for count, pod in kinds]


def _pull_secrets(pod: Json) -> Iterable[str]:
    return [each["name"] for each in pod["spec"].get("imagePullSecrets", []) if each.get("name")]


def _added(admitted: Amounts, planned: Amounts) -> Amounts:
    more = {name: count - planned.get(name, 0) for name, count in admitted.items()}
    return {name: count for name, count in more.items() if count > 0}


def _sum(requests: Amounts, added: Amounts) -> Amounts:
    return requests | {name: requests.get(name, 0) + more for name, more in added.items()}


def _quota_facts(quota: builtin.ResourceQuota) -> QuotaFacts:
    return QuotaFacts(
        name=quota.metadata.name,
        hard=_amounts(quota.status.hard or quota.spec.hard),
        used=_amounts(quota.status.used),
    )


def _amounts(quantities: builtin.Quantities | None) -> dict[str, int]:
    """Return amounts by the quota's resource names. CPU in thousandths of a core."""
    return {
        name: amount(CPU if name.rpartition(".")[2] == CPU else name, str(each))
        for name, each in (quantities or {}).items()
    }


def _counts(quota: builtin.ResourceQuota, spec: builtin.PodSpec) -> bool:
    """Return whether a ResourceQuota counts pods like this one, by its scopes."""
    listed = (
        builtin.ScopeRequirement(scope_name=name, operator="Exists")
        for name in quota.spec.scopes or ()
    )
    selector = quota.spec.scope_selector
    selected = (selector.match_expressions or ()) if selector is not None else ()
    return all(_matches(scope, spec) for scope in (*listed, *selected))


def _matches(scope: builtin.ScopeRequirement, spec: builtin.PodSpec) -> bool:
    # An unknown scope excludes the pod: the check must not refuse a start by mistake.
    match scope.scope_name:
        case "NotTerminating":
            return spec.active_deadline_seconds is None
        case "Terminating":
            return spec.active_deadline_seconds is not None
        case "NotBestEffort":
            return True
        case "PriorityClass":
            name, values = spec.priority_class_name or "", scope.values or ()
            answers = {
                "In": name in values,
                "NotIn": name not in values,
                "Exists": bool(name),
                "DoesNotExist": not name,
            }
            return answers.get(scope.operator, False)
        case _:
            return False
