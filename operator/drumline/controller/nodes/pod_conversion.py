"""Convert pods and events of the API server to the lifecycle's facts."""

from __future__ import annotations

from collections.abc import Iterable

from drumline.kube.views import ContainerView, EventView, PodPhase, PodView
from drumline.lifecycle.incidents.failures import REJECTED
from drumline.lifecycle.incidents.start_troubles import MAX_SENTENCE_CHARS, UNTOLD_REASONS
from drumline.lifecycle.manifests.agents import JOIN_CONTAINER
from drumline.lifecycle.manifests.containers import TRAINER_CONTAINER
from drumline.lifecycle.model.observed import PodEnd, PodEvent, PodFacts
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline_api.base import (
    ANNOTATION_NODE,
    LABEL_GENERATION,
    LABEL_INDEX,
    LABEL_JOB,
    LABEL_PROTECTED,
)
from drumline_contract import pod_name

_EVICTED = "EvictionByEvictionAPI"
"""Reason of a pod's DisruptionTarget condition after an API eviction (KEP-3329)."""
_NODE_PRESSURE = "TerminationByKubelet"
"""Reason of the same condition after an eviction because the node ran short.

A pod that exceeds a limit of its own (sizeLimit of a volume, ephemeral-storage) is evicted without
the condition.
"""

_PROTECTED = {"true": True, "false": False}


def facts_of(pod: PodView) -> PodFacts | None:
    """Convert a pod of ours to the lifecycle's facts. None if its labels are not ours.

    The main container decides, not the pod's phase and conditions. Admission may have added
    containers, and a sidecar that continues keeps the phase Running.
    """
    # Phase 1: identity. Anybody can write labels, but a pod name can be used only once.
    try:
        index = int(pod.labels[LABEL_INDEX])
        generation = int(pod.labels[LABEL_GENERATION])
        expected = pod_name(pod.labels[LABEL_JOB], index, generation)
    except (KeyError, ValueError):
        return None
    if pod.name != expected or index < 0:  # labels anybody can write; a name can be taken but once
        return None
    # Phase 2: the containers, and the end of the main one.
    containers = (*pod.init_containers, *pod.containers)
    waiting = _waiting(containers)
    main = next((c for c in pod.containers if c.name == TRAINER_CONTAINER), None)
    end = _end_of(pod, main)
    return PodFacts(
        name=pod.name,
        uid=pod.uid,
        index=index,
        generation=generation,
        # An unbound pod belongs to the node that the operator chose for it.
        node=pod.node_name or pod.annotations.get(ANNOTATION_NODE, ""),
        unbound=not pod.node_name,
        ip=pod.pod_ip,
        ready=pod.ready if main is None else main.ready,
        joining=any(
            c.name == JOIN_CONTAINER and not c.waiting_reason and c.exit_code is None
            for c in pod.init_containers
        ),
        terminating=pod.terminating,
        terminates_by=parse_timestamp(pod.deletion_time) if pod.deletion_time else None,
        protected=_PROTECTED.get(pod.labels.get(LABEL_PROTECTED, "")),
        evicted=pod.disruption_reason == _EVICTED,
        waiting=_sentence(waiting.waiting_reason, waiting.waiting_message) if waiting else "",
        image_id=main.image_id if main is not None else "",
        end=end,
        lingers=end is not None and not pod.finished,
        closing=end is not None and not pod.finished and _all_ended(pod),
    )


def _all_ended(pod: PodView) -> bool:
    """Return whether all containers have ended. Init containers and native sidecars are ignored."""
    return all(container.exit_code is not None for container in pod.containers)


def event_of(event: EventView) -> PodEvent:
    """Convert an Event about a pod to the lifecycle's value."""
    try:
        at = parse_timestamp(event.time)
    except ValueError:
        at = 0.0
    return PodEvent(reason=event.reason, message=event.message, at=at, warning=event.warning)


def _end_of(pod: PodView, main: ContainerView | None) -> PodEnd | None:
    """Return how the main container ended. If it never ran, return how the pod ended.

    Native sidecars end with every pod, by a signal, and do not explain its end.
    """
    if main is not None and main.exit_code is not None:
        # A pod that failed as a whole (Evicted) says so, whatever its containers' codes are.
        failed_as_a_whole = pod.phase is PodPhase.FAILED and pod.reason != ""
        return _ended(pod, main, succeeded=main.exit_code == 0 and not failed_as_a_whole)
    if not pod.finished:
        return None
    # The main container never ran: the first container that failed is the cause.
    counted = (*pod.containers, *(c for c in pod.init_containers if not c.is_sidecar))
    ended = [c for c in counted if c.exit_code is not None]
    cause = next((c for c in ended if c.exit_code), ended[0] if ended else None)
    if cause is None:
        return PodEnd(
            succeeded=False, reason=pod.reason, message=pod.message, own_limit=_own_limit(pod)
        )
    return _ended(pod, cause, succeeded=pod.phase is PodPhase.SUCCEEDED)


def _ended(pod: PodView, container: ContainerView, *, succeeded: bool) -> PodEnd:
    finished = container.finished_time
    return PodEnd(
        succeeded=succeeded,
        exit_code=container.exit_code,
        reason=pod.reason or container.exit_reason,
        message=container.termination_message,
        ended_at=parse_timestamp(finished) if finished else None,
        own_limit=_own_limit(pod),
    )


def _own_limit(pod: PodView) -> str:
    is_refused = pod.message.startswith(REJECTED)
    if pod.reason != "Evicted" or is_refused or pod.disruption_reason == _NODE_PRESSURE:
        return ""
    return pod.message or pod.reason


def _waiting(containers: Iterable[ContainerView]) -> ContainerView | None:
    """Return a waiting container: first one with a reason, and sidecars last."""
    waiting = [container for container in containers if container.waiting_reason]
    return min(
        waiting, key=lambda c: (c.waiting_reason in UNTOLD_REASONS, c.is_sidecar), default=None
    )


def _sentence(reason: str, message: str) -> str:
    return f"{reason}: {message[:MAX_SENTENCE_CHARS]}" if message else reason
