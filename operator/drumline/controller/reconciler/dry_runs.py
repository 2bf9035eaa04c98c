"""Ask the API server in dry runs what a start would meet. Nothing is written.

A dry run of a create runs the whole admission: quotas, LimitRanges, Pod Security and webhooks. If
the name is taken, it answers AlreadyExists. That shows whether an object exists, without a right to
read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from drumline.kube import reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import AlreadyExists, Forbidden, Invalid, NotFound
from drumline.kube.kinds import (
    COMPUTE_DOMAINS,
    CONFIG_MAPS,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SECRETS,
    Resource,
)
from drumline.lifecycle.manifests import children
from drumline.lifecycle.manifests.compute_domains import compute_domain
from drumline.lifecycle.manifests.containers import with_limits
from drumline.lifecycle.manifests.named_objects import NamedObject
from drumline.lifecycle.manifests.shared_objects import SHARED_NAME, shared_budget, shared_policy
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.plan.start_check import QUOTA_WORDS, wants_limits
from drumline_api.base import LABEL_DRY_RUN
from drumline_api.objects import builtin

Json = dict[str, Any]
MAX_WORDS: Final = 500
"""Characters of the API server's message that are kept."""
MAX_OBJECTS: Final = 32
"""ConfigMaps and Secrets that are looked for. A tenant may name thousands."""
_KINDS: Final = {"ConfigMap": CONFIG_MAPS, "Secret": SECRETS}
_NO_DRY_RUN: Final = "does not support dry run"
"""Part of the message about a webhook without support for dry runs. It says nothing of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedPod:
    """The answer about one pod."""

    refusal: str = ""
    """The API server's rejection, or ''."""
    spec: builtin.PodSpec | None = None
    """Spec as admitted. None if it is not known."""
    own_limits: bool = False
    """True if the pod needs limits of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundObjects:
    """Named objects that do not exist, and those about which nothing is known."""

    missing: tuple[NamedObject, ...] = ()
    unknown: tuple[NamedObject, ...] = ()


class DryRuns:
    """Dry runs for the start of a job.

    Args:
        client: fenced client for the API server. A dry run is a write.
        operator_namespace: namespace of the operator.
    """

    def __init__(self, client: KubeClient, *, operator_namespace: str) -> None:
        self._client = client
        self._operator_namespace = operator_namespace

    async def pod(self, job: Job, pod: Json) -> AdmittedPod:
        """Return whether a pod would be admitted, and with which spec.

        Raises:
            KubeError: the API server did not answer.
        """
        metadata = {key: value for key, value in pod["metadata"].items() if key != "name"}
        metadata["generateName"] = f"{job.name}-"  # the name may still be a leaving pod's
        body, own_limits = {**pod, "metadata": metadata}, False
        try:
            try:
                answer = await self._create(PODS, body, namespace=job.namespace)
            except Invalid as error:
                if not wants_limits(error.message):
                    raise
                own_limits = True
                answer = await self._create(PODS, with_limits(body), namespace=job.namespace)
        except (Forbidden, Invalid) as error:
            return AdmittedPod(refusal=_words(error.message))
        spec = msgspec.json.decode(answer, type=builtin.Pod).spec
        return AdmittedPod(spec=spec, own_limits=own_limits)

    async def refused_child(self, job: Job) -> str:
        """Return why an object beside the pods would be rejected, or ''.

        Raises:
            KubeError: the API server did not answer.
        """
        wanted = self._children(job)
        answers = await asyncio.gather(*(self._refused(job, kind, body) for kind, body in wanted))
        return next(filter(None, answers), "")

    async def find(self, job: Job, objects: Iterable[NamedObject]) -> FoundObjects:
        """Look for ConfigMaps and Secrets, at most `MAX_OBJECTS`.

        Raises:
            KubeError: the API server did not answer.
        """
        asked = tuple(dict.fromkeys(objects))
        known = await asyncio.gather(*(self._exists(job, each) for each in asked[:MAX_OBJECTS]))
        answers = list(zip(asked[:MAX_OBJECTS], known, strict=True))
        return FoundObjects(
            missing=tuple(each for each, exists in answers if exists is False),
            unknown=(
                *(each for each, exists in answers if exists is None),
                *asked[MAX_OBJECTS:],
            ),
        )

    async def _exists(self, job: Job, named: NamedObject) -> bool | None:
        """Return whether an object exists. None if a rejection hides it."""
        metadata = {
            "name": named.name,
            "namespace": job.namespace,
            "labels": {LABEL_DRY_RUN: "true"},
            "ownerReferences": [children.owner_reference(job)],
        }
        body = {"apiVersion": "v1", "kind": named.kind, "metadata": metadata}
        try:
            await self._create(_KINDS[named.kind], body, namespace=job.namespace)
        except AlreadyExists:
            return True
        except (Forbidden, Invalid):  # no right, a full quota, a webhook
            return None
        return False

    def _children(self, job: Job) -> Sequence[tuple[Resource, Json]]:
        """Return the objects that a start may create beside pods."""
        wanted: list[tuple[Resource, Json]] = []
        if job.members > children.SHARED_BUDGET_NODES:
            wanted.append((POD_DISRUPTION_BUDGETS, children.disruption_budget(job)))
        else:
            wanted.append((POD_DISRUPTION_BUDGETS, shared_budget(job.namespace)))
        if job.has_agents:
            namespace = self._operator_namespace
            policy = shared_policy(job.namespace, operator_namespace=namespace)
            wanted += [
                (SECRETS, children.token_secret(job, b"dry run")),
                (NETWORK_POLICIES, policy),
            ]
        if job.spec.compute_domain is not None:
            wanted.append((COMPUTE_DOMAINS, compute_domain(job)))
        return wanted

    async def _refused(self, job: Job, resource: Resource, body: Json) -> str:
        try:
            await self._create(resource, body, namespace=job.namespace)
        except AlreadyExists:
            return ""
        except (Forbidden, Invalid, NotFound) as error:
            if isinstance(error, NotFound) and resource is not COMPUTE_DOMAINS:
                raise
            # A full quota refuses the create before the API server looks for the name.
            if QUOTA_WORDS in error.message and await self._is_there(job, resource, body):
                return ""
            return f"{resource.kind}: {words}" if (words := _words(error.message)) else ""
        return ""

    async def _is_there(self, job: Job, resource: Resource, body: Json) -> bool:
        """Return whether an object beside the pods exists, as far as that can be seen."""
        name = body["metadata"]["name"]
        if name != SHARED_NAME:  # the operator may list the shared ones alone
            return children.was_created(job, name=name)
        named = f"metadata.name={SHARED_NAME}"
        return bool(
            await reads.list_all(
                self._client, resource, namespace=job.namespace, field_selector=named
            )
        )

    async def _create(self, resource: Resource, body: Json, *, namespace: str) -> bytes:
        return await writes.dry_run(self._client, resource, body=body, namespace=namespace)


def _words(message: str) -> str:
    return "" if _NO_DRY_RUN in message else message[:MAX_WORDS]
