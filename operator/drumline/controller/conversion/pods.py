"""Pods as the API server shows them -> the facts on which the lifecycle decides."""

from __future__ import annotations

from drumline.api.base import LABEL_GENERATION, LABEL_INDEX, LABEL_JOB
from drumline.kube.views import PodView
from drumline.lifecycle.manifests.containers import JOIN_CONTAINER
from drumline.lifecycle.model.observed import PodEnd, PodFacts
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline_trainer.contract import pod_name


def facts_of(pod: PodView) -> PodFacts | None:
    """A pod of ours as the lifecycle sees it; None if its labels are not ours."""
    try:
        index = int(pod.labels[LABEL_INDEX])
        generation = int(pod.labels[LABEL_GENERATION])
        expected = pod_name(pod.labels[LABEL_JOB], index, generation)
    except (KeyError, ValueError):
        return None
    if pod.name != expected or index < 0:  # labels anybody can write; a name can be taken but once
        return None
    containers = (*pod.init_containers, *pod.containers)
    waiting = next((c for c in containers if c.waiting_reason), None)
    return PodFacts(
        name=pod.name,
        uid=pod.uid,
        index=index,
        generation=generation,
        node=pod.node_name,
        ip=pod.pod_ip,
        ready=pod.ready,
        joining=any(
            c.name == JOIN_CONTAINER and not c.waiting_reason and c.exit_code is None
            for c in pod.init_containers
        ),
        terminating=pod.terminating,
        waiting=_sentence(waiting.waiting_reason, waiting.waiting_message) if waiting else "",
        end=_end_of(pod),
    )


def _end_of(pod: PodView) -> PodEnd | None:
    if not pod.finished:
        return None
    ended = [c for c in (*pod.containers, *pod.init_containers) if c.exit_code is not None]
    main = next((c for c in ended if c.exit_code), ended[0] if ended else None)
    if main is None:
        return PodEnd(succeeded=False, reason=pod.reason, message=pod.message)
    return PodEnd(
        succeeded=pod.phase == "Succeeded",
        exit_code=main.exit_code,
        reason=pod.reason or main.exit_reason,
        message=main.termination_message,
        ended_at=parse_timestamp(main.finished_time) if main.finished_time else None,
    )


def _sentence(reason: str, message: str) -> str:
    return f"{reason}: {message[:200]}" if message else reason
