"""Jobs, their pods and queues as the API server shows them -> what the pure rooms decide on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from drumline.api.base import LABEL_GENERATION, LABEL_INDEX, LABEL_JOB
from drumline.api.load import parse
from drumline.api.podtemplate import Toleration as ApiToleration
from drumline.api.policy import SchedulingPolicy
from drumline.api.topology import TopologyRequest
from drumline.api.trainingjob import TrainingJobSpec, TrainingJobStatus
from drumline.api.trainingqueue import TrainingQueueSpec
from drumline.controller.conversion.nodes import resources_of
from drumline.kube.quantity import amount
from drumline.kube.views import ObjectView, PodView
from drumline.lifecycle.manifests.pods import JOIN_CONTAINER, JOIN_REQUESTS
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import PodEnd, PodFacts
from drumline.lifecycle.model.sizes import allowed_sizes
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline.scheduling.model import (
    Gang,
    MoveBudget,
    Ordering,
    Policy,
    PreemptionRule,
    Queue,
    Reclaim,
    Slice,
    TaintEffect,
    Toleration,
    TolerationOperator,
    WaitingRule,
    WithinQueue,
)
from drumline.scheduling.resources import Resources
from drumline_trainer.contract import pod_name

_GPU_TOLERATION = Toleration(key="nvidia.com/gpu", operator=TolerationOperator.EXISTS)


def job_of(view: ObjectView) -> Job:
    """A TrainingJob as the lifecycle sees it.

    Raises:
        ApiError: stored before a stricter version of the API.
    """
    return Job(
        namespace=view.namespace,
        name=view.name,
        uid=view.uid,
        resource_version=view.resource_version,
        object_generation=view.generation,
        created_at=parse_timestamp(view.creation_time),
        spec=parse(TrainingJobSpec, view.spec, at="spec"),
        status=parse(TrainingJobStatus, view.status, at="status"),
        deleting=bool(view.deletion_time),
    )


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


def queue_of(name: str, spec: TrainingQueueSpec) -> Queue:
    """A TrainingQueue as the scheduler sees it."""
    quotas = spec.quotas
    return Queue(
        name=name,
        nominal={quota.gpu_pool: quota.nominal_gpus for quota in quotas},
        max_priority=spec.max_priority,
        namespaces=None if spec.namespaces is None else frozenset(spec.namespaces),
        parent=spec.parent,
        borrowing_limit={
            quota.gpu_pool: quota.borrowing_limit_gpus
            for quota in quotas
            if quota.borrowing_limit_gpus is not None
        },
        lending_limit={
            quota.gpu_pool: quota.lending_limit_gpus
            for quota in quotas
            if quota.lending_limit_gpus is not None
        },
        preemption=PreemptionRule(
            within_queue=WithinQueue(spec.preemption.within_queue),
            reclaim=Reclaim(spec.preemption.reclaim),
        ),
        min_runtime_seconds=float(spec.min_runtime_seconds),
        weight=float(spec.weight),
        user_limit={
            quota.gpu_pool: quota.user_limit_gpus
            for quota in quotas
            if quota.user_limit_gpus is not None
        },
    )


def policy_of(policy: SchedulingPolicy) -> Policy:
    """The owner's choices as the scheduler sees them."""
    moves = policy.moves
    return Policy(
        waiting=WaitingRule(policy.waiting),
        restart_seconds=policy.restart_seconds,
        priority_seconds=policy.priority_seconds,
        order=Ordering(policy.order),
        history_weight=policy.history_weight,
        history_seconds=policy.history_half_life_seconds,
        reservations=policy.reservations,
        surplus=policy.surplus,
        repairs_preempt=policy.repairs_preempt,
        moves=None
        if moves is None
        else MoveBudget(gangs=moves.jobs, gpu_seconds=moves.gpu_seconds),
        move_back=policy.move_back,
    )


def gang_of(
    job: Job,
    *,
    priority: int,
    platform_tolerations: tuple[Toleration, ...] = (),
    retry_at: float = 0.0,
    retry_cause: str = "",
) -> Gang:
    """A job as the scheduler sees it.

    Args:
        job: the job.
        priority: the value of its priority class.
        platform_tolerations: what the platform adds to pods of the bundled trainer.
        retry_at: not before this time (seconds since the epoch).
        retry_cause: why it backs off.
    """
    spec, status = job.spec, job.status
    topology, nominated = spec.topology, status.nominated
    sizes, deadline = allowed_sizes(spec), spec.active_deadline_seconds
    again = status.generation is not None and status.assignment is None
    group = None if again else spec.group  # the common start is over
    extra = platform_tolerations if job.runs_trainer else ()
    return Gang(
        key=job.key,
        uid=job.uid,
        queue=spec.queue,
        nodes=spec.nodes,
        per_pod=_per_pod(job),
        queued_at=parse_timestamp(status.queued_at) if status.queued_at else job.created_at,
        priority=priority,
        pool=spec.gpu_pool,
        pools=tuple(spec.gpu_pools or ()),
        required_level=topology.required if topology else None,
        preferred_level=topology.preferred if topology else None,
        slices=_slices(topology),
        balanced_level=topology.balanced if topology else None,
        selector=dict(spec.node_selector or {}),
        tolerations=(_GPU_TOLERATION, *map(_toleration, spec.tolerations or ()), *extra),
        retry_at=retry_at,
        retry_cause=retry_cause,
        sizes=sizes if len(sizes) > 1 else (),
        user=spec.user or "",
        group=group.name if group else "",
        group_gangs=group.jobs if group else 1,
        max_runtime_seconds=None if deadline is None else float(deadline),
        nominated=() if nominated is None else nominated.node_names(),
        nominated_pool="" if nominated is None else nominated.gpu_pool,
    )


def platform_tolerations(raw: Iterable[Mapping[str, Any]]) -> tuple[Toleration, ...]:
    """The tolerations of DRUMLINE_TRAINER_POD.

    Raises:
        ApiError: one of them is none.
    """
    return tuple(_toleration(parse(ApiToleration, each, at="tolerations")) for each in raw)


def _per_pod(job: Job) -> Resources:
    """One pod's requests as the kubelet counts them: the larger of container and init container."""
    requests = {str(k): amount(str(k), str(v)) for k, v in (job.spec.resources or {}).items()}
    if not job.runs_trainer and job.has_agents:
        for name, text in JOIN_REQUESTS.items():
            requests[name] = max(requests.get(name, 0), amount(name, text))
    return resources_of(requests, gpu_resource="", pods=1) + Resources(gpus=job.spec.gpus_per_node)


def _slices(topology: TopologyRequest | None) -> tuple[Slice, ...]:
    """The largest first: every smaller one lies within it."""
    asked = (topology.slices if topology else None) or []
    return tuple(
        Slice(level=one.level, pods=one.nodes, required=one.required)
        for one in sorted(asked, key=lambda one: -one.nodes)
    )


def _toleration(toleration: ApiToleration) -> Toleration:
    return Toleration(
        key=toleration.key or "",
        operator=TolerationOperator(toleration.operator),
        value=toleration.value or "",
        effect=TaintEffect(toleration.effect) if toleration.effect else None,
    )


def _sentence(reason: str, message: str) -> str:
    return f"{reason}: {message[:200]}" if message else reason
