"""Check a job's start from known facts, before other gangs are evicted or moved for it. Pure.

A start would be refused in these cases. Its namespace is being deleted. A claim or an image pull
secret does not exist. A ResourceQuota is too small for the whole gang. The API server rejects one
pod in a dry run (LimitRange, Pod Security, webhooks). A job whose last start failed since its spec
changed is not checked: it gets only free capacity until a start has succeeded.

Example: a gang of 4 pods, and a ResourceQuota with `pods: 3`. The check refuses the start, and no
other job has to leave. The refusal counts as a failed start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.readiness import is_unobserved
from drumline.lifecycle.plan.claims import ClaimUnusable

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
)
"""Part of the API server's message, and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFacts:
    """A ResourceQuota that applies to the pods of a job; CPU in thousandths."""

    name: str
    hard: Mapping[str, int]
    used: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """The facts on which a start is checked."""

    namespace_terminates: bool = False
    claim: ClaimUnusable | None = None
    """Why a claim of the job cannot be used."""
    missing_secrets: tuple[str, ...] = ()
    """Image pull secrets that do not exist."""
    refusal: str = ""
    """The API server's rejection in the dry run of a pod, or ''."""
    quotas: tuple[QuotaFacts, ...] = ()
    requested: Mapping[str, int] = field(default_factory=dict[str, int])
    """Amounts of all pods of the gang in a quota, by its resource names."""
    freed: Mapping[str, int] = field(default_factory=dict[str, int])
    """Amounts of pods in the namespace that end before these are created."""
    replaces: bool = False
    """True if pods of the job itself end before the new ones are created, which frees quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRefusal:
    """Why a start would be refused, and what repairs it."""

    message: str
    remedy: str


def refusal_of_start(job: Job, facts: StartFacts) -> StartRefusal | None:
    """Return why the start of a job would be refused, or None."""
    if facts.namespace_terminates:
        message = f"namespace {job.namespace} is being deleted"
        return StartRefusal(message=message, remedy="create the job in another namespace")
    if facts.claim is not None:
        return StartRefusal(message=facts.claim.message, remedy=facts.claim.remedy)
    for name in facts.missing_secrets:
        return StartRefusal(
            message=f'image pull secret "{name}" not found',
            remedy=f"create the Secret {name}, or correct its name in the job",
        )
    # Pods that end first free their quota, so a quota that is full now proves nothing.
    if not facts.replaces and (short := _short_quota(facts)) is not None:
        return short
    has_room = (facts.replaces or facts.freed) and QUOTA_WORDS in facts.refusal
    if facts.refusal and not has_room:
        message = f"the API server would refuse its pods: {facts.refusal}"
        return StartRefusal(message=message, remedy=remedy_of_refusal(facts.refusal))
    return None


def wants_limits(words: str) -> bool:
    """Return whether the message says that a LimitRange's default limit is below a request."""
    return "must be less than or equal to" in words


def remedy_of_refusal(words: str) -> str:
    """Return the remedy for a rejection by the API server."""
    remedies = (remedy for part, remedy in _REMEDIES if part in words)
    return next(remedies, "change what the message names")


def failed_start_of(job: Job) -> str:
    """Return why the last start of a waiting job failed, or '' if none failed with this spec."""
    count = job.status.failed_starts or 0
    if not count or is_unobserved(job) or job.status.assignment is not None:
        return ""
    cause = (job.status.incident or "").partition("\n")[0][:_MAX_CAUSE]
    return f"its last start failed ({cause})" if cause else "its last start failed"


def quota_amounts(
    pods: Iterable[tuple[int, Mapping[str, int], Mapping[str, int]]],
) -> dict[str, int]:
    """Return the amounts that pods count in a ResourceQuota, by its resource names.

    Args:
        pods: number of equal pods, and the requests and the limits of each.
    """
    total: dict[str, int] = {}

    def add(name: str, amount: int) -> None:
        total[name] = total.get(name, 0) + amount

    # A ResourceQuota counts pods, requests and limits under several names.
    for count, requests, limits in pods:
        add("pods", count)
        add("count/pods", count)
        for resource, amount in requests.items():
            add(f"requests.{resource}", count * amount)
            if "/" not in resource:  # devices are counted with their prefix only
                add(resource, count * amount)
        for resource, amount in limits.items():
            add(f"limits.{resource}", count * amount)
    return total


def _short_quota(facts: StartFacts) -> StartRefusal | None:
    """Return the refusal of the first ResourceQuota without room for the whole gang."""
    for quota in facts.quotas:
        for resource, most in sorted(quota.hard.items()):
            needed = facts.requested.get(resource, 0)
            used = quota.used.get(resource, 0) - facts.freed.get(resource, 0)
            if needed and used + needed > most:
                return StartRefusal(
                    message=f"ResourceQuota {quota.name} has no room for the whole gang:"
                    f" {resource} needs {_text(resource, needed)},"
                    f" used {_text(resource, used)} of {_text(resource, most)}",
                    remedy=remedy_of_refusal(QUOTA_WORDS),
                )
    return None


def _text(resource: str, amount: int) -> str:
    return f"{amount / 1000:g}" if resource.rpartition(".")[2] == "cpu" else str(amount)
