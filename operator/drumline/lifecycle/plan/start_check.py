"""Check a job's start from known facts, before other gangs are evicted or moved for it. Pure.

A start would be refused in these cases. Its namespace is being deleted. A claim, ConfigMap, Secret
or image pull secret does not exist, or no pod can use the claim. A pod of another owner has the
name of a member. A ResourceQuota is too small for everything that the whole gang creates. A
LimitRange rejects a claim that is made for a pod. The API server rejects a pod or another object in
a dry run (LimitRange, Pod Security, webhooks, a deleted ServiceAccount, PriorityClass or
RuntimeClass). A start that could not be checked is not tried at the cost of others either.

A job whose last start failed since its spec changed is not checked: it gets only free capacity
until a start has succeeded. One exception: the check itself can see that the cause is gone.

Example: a gang of 4 pods, and a ResourceQuota with `pods: 3`. The check refuses the start, and no
other job has to leave. The refusal counts as a failed start.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from drumline.lifecycle.manifests.named_objects import NamedObject
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.readiness import is_unobserved
from drumline.lifecycle.plan.claim_limits import ClaimOutsideLimits
from drumline.lifecycle.plan.claims import ClaimUnusable
from drumline.lifecycle.plan.quota_headroom import (
    NOTHING_PLANNED,
    PlannedObjects,
    QuotaFacts,
    shortage,
)

_MAX_CAUSE: Final = 200
QUOTA_WORDS: Final = "exceeded quota"
"""Part of the API server's message if a ResourceQuota is exceeded."""
_REMEDIES: Final = (
    (QUOTA_WORDS, "raise the ResourceQuota, or wait until other pods of the namespace end"),
    ("must specify", "state these in spec.resources, or add defaults to the LimitRange"),
    ("must be less than or equal to", "state spec.resources, or raise the LimitRange's defaults"),
    ("LimitRange", "state spec.resources within the LimitRange, or raise its limits"),
    ("usage per Container", "state spec.resources within the LimitRange, or raise its limits"),
    ("usage per Pod", "state spec.resources within the LimitRange, or raise its limits"),
    ("PodSecurity", "change the template to what the namespace's Pod Security level allows"),
    ("admission webhook", "change what the webhook's message names"),
    ("being terminated", "create the job in another namespace"),
    ("serviceaccount", "create the ServiceAccount, or correct its name in the pool's podProfile"),
    ("PriorityClass", "create the PriorityClass that the message names"),
    ("RuntimeClass", "create the RuntimeClass, or correct its name in the pool's podProfile"),
)
"""Part of the API server's message, and the remedy."""


_CHECKED: Final = (
    "csidriver ",
    "LimitRange ",
    "ResourceQuota ",
    "image pull secret ",
    "persistentvolumeclaim ",
    "storageclass ",
    "no claim of volume ",
    "the API server would refuse ",
)
"""Beginnings of messages about causes that a check sees again while they last."""
_MISSING: Final = re.compile(r"\b(?P<kind>secret|configmap)s? \"(?P<name>[^\"]+)\" not found")
_KINDS: Final = {"secret": "Secret", "configmap": "ConfigMap"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """The facts on which a start is checked."""

    namespace_terminates: bool = False
    taken_name: str = ""
    """Name of a member's pod that a pod of no job has, or ''."""
    claim: ClaimUnusable | None = None
    """Why a claim of the job cannot be used."""
    missing: tuple[NamedObject, ...] = ()
    """ConfigMaps and Secrets that do not exist."""
    unknown: tuple[NamedObject, ...] = ()
    """ConfigMaps and Secrets of which it is not known whether they exist."""
    pull_secrets: tuple[str, ...] = ()
    """Image pull secrets of the pods."""
    refusal: str = ""
    """The API server's rejection in the dry run of a pod, or ''."""
    child_refusal: str = ""
    """The API server's rejection in the dry run of an object beside the pods, or ''."""
    claim_outside: ClaimOutsideLimits | None = None
    """A claim made for a pod that a LimitRange rejects."""
    quotas: tuple[QuotaFacts, ...] = ()
    requested: PlannedObjects = NOTHING_PLANNED
    """Everything that the start creates."""
    promised: PlannedObjects = NOTHING_PLANNED
    """Objects of other jobs of the namespace that start before."""
    uncounted: int = 0
    """Number of jobs that start before if they are too many to be counted, or 0."""
    freed: PlannedObjects = NOTHING_PLANNED
    """Pods of the namespace that end before, with their claims."""
    replaces: bool = False
    """True if pods of the job itself end before the new ones are created, which frees quota."""
    requests_more: bool = False
    """True if admission adds requests to the pods that its places were not chosen for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRefusal:
    """Why a start would be refused, and what repairs it."""

    message: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDoubt:
    """Why it is not known whether a start would be refused."""

    message: str
    seconds: float
    """Time for which no gang is evicted or moved for the job."""


DOUBT_SECONDS: Final = 600.0
PROMISED_SECONDS: Final = 60.0
"""Time after which a start is checked again for which other jobs leave no room in a quota."""


def refusal_of_start(job: Job, facts: StartFacts) -> StartRefusal | StartDoubt | None:
    """Return why the start of a job would be refused or is in doubt, or None."""
    if facts.namespace_terminates:
        message = f"namespace {job.namespace} is being deleted"
        return StartRefusal(message=message, remedy="create the job in another namespace")
    if facts.claim is not None:
        return StartRefusal(message=facts.claim.message, remedy=facts.claim.remedy)
    if facts.taken_name:
        name = facts.taken_name
        words = f"pod {name} already exists and does not belong to a TrainingJob"
        return replace(
            _rejected("its pods", words), remedy="delete that pod, or rename one of both"
        )
    if facts.uncounted:
        message = (
            f"{facts.uncounted} jobs of its namespace, which has a ResourceQuota, start before it"
        )
        return StartDoubt(message=message, seconds=PROMISED_SECONDS)
    for missing in facts.missing:
        return _not_found(missing, pulls=missing.name in facts.pull_secrets)
    # The last start failed because of this object, and nothing shows that it exists now.
    if (named := missing_in_failure(job)) is not None and named in facts.unknown:
        return StartDoubt(message=_failed_start(job), seconds=DOUBT_SECONDS)
    if facts.claim_outside is not None:
        return StartRefusal(
            message=facts.claim_outside.message(),
            remedy="request storage within the LimitRange, or change its limits",
        )
    # Pods that end first free their quota, so a quota that is full now proves nothing.
    short = shortage(facts.quotas, requested=facts.requested, freed=facts.freed)
    if short is not None and not facts.replaces:
        return StartRefusal(message=short.message(), remedy=remedy_of_refusal(QUOTA_WORDS))
    has_room = (facts.replaces or facts.freed.pods) and QUOTA_WORDS in facts.refusal
    if facts.refusal and not has_room:
        return _rejected("its pods", facts.refusal)
    if facts.child_refusal:
        return _rejected("objects beside its pods", facts.child_refusal)
    return _doubt_of(facts)


def _doubt_of(facts: StartFacts) -> StartDoubt | None:
    """Return why a start that nothing refuses has to wait, or None."""
    together = facts.requested.joined(facts.promised)
    short = shortage(facts.quotas, requested=together, freed=facts.freed)
    if short is not None and not facts.replaces:
        message = f"{short.message()}, with the jobs that start before it"
        return StartDoubt(message=message, seconds=PROMISED_SECONDS)
    if facts.requests_more:  # the next cycle knows them, and may choose other places
        return StartDoubt(message="admission adds requests to its pods", seconds=0.0)
    return None


def wants_limits(words: str) -> bool:
    """Return whether the message says that a LimitRange's default limit is below a request."""
    return "must be less than or equal to" in words


def remedy_of_refusal(words: str) -> str:
    """Return the remedy for a rejection by the API server."""
    remedies = (remedy for part, remedy in _REMEDIES if part in words)
    return next(remedies, "change what the message names")


def failed_start_of(job: Job) -> str:
    """Return why the last start of a waiting job failed, or '' if that keeps it from no eviction.

    It does not if no start failed with this spec, or if a check sees whether the cause is gone.
    """
    count = job.status.failed_starts or 0
    if not count or is_unobserved(job) or job.status.assignment is not None:
        return ""
    is_checked = (job.status.incident or "").startswith(_CHECKED)
    return "" if is_checked or missing_in_failure(job) is not None else _failed_start(job)


def missing_in_failure(job: Job) -> NamedObject | None:
    """Return the ConfigMap or Secret that the last failed start lacked, or None."""
    if not job.status.failed_starts:
        return None
    match = _MISSING.search(job.status.incident or "")
    return NamedObject(_KINDS[match["kind"]], match["name"]) if match is not None else None


def _failed_start(job: Job) -> str:
    cause = (job.status.incident or "").partition("\n")[0][:_MAX_CAUSE]
    return f"its last start failed ({cause})" if cause else "its last start failed"


def _rejected(what: str, words: str) -> StartRefusal:
    message = f"the API server would refuse {what}: {words}"
    return StartRefusal(message=message, remedy=remedy_of_refusal(words))


def _not_found(missing: NamedObject, *, pulls: bool) -> StartRefusal:
    kind, name = missing
    what = "image pull secret" if pulls and kind == "Secret" else kind.lower()
    return StartRefusal(
        message=f'{what} "{name}" not found',
        remedy=f"create the {kind} {name}, or correct its name in the job",
    )
