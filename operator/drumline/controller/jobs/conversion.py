"""Convert TrainingJobs of the API server to the values of lifecycle and scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from drumline.controller.jobs.shared_specs import SharedSpecs
from drumline.controller.nodes.conversion import ANY_GPUS, GpuUnits, resources_of
from drumline.controller.queues.conversion import price_rule_of
from drumline.kube import codec
from drumline.kube.quantity import amount
from drumline.kube.views import TrainingJobView
from drumline.lifecycle.manifests.agents import INIT_RESOURCES
from drumline.lifecycle.manifests.containers import main_requests
from drumline.lifecycle.manifests.init_containers import sidecar_requests
from drumline.lifecycle.model.chains import FREE, Standing
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.layout_groups import layout_slices
from drumline.lifecycle.model.members import base_size
from drumline.lifecycle.model.roles import gang_gpus, role_pods
from drumline.lifecycle.model.sizes import sizes_of
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline.lifecycle.model.verdict import Refusal, Schedulable
from drumline_api.base import RESOURCE_CHANNEL
from drumline_api.conditions import Reason
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.load import ApiError, parse, parse_readable
from drumline_api.nodeaffinity import NodeAffinity
from drumline_api.podtemplate import Toleration as ApiToleration
from drumline_api.resource_names import GPU_TAINTS
from drumline_api.role import RoleSpec
from drumline_api.spec_rules import broken_name
from drumline_api.topology import TopologyRequest
from drumline_api.trainingjob import TrainingJobSpec, TrainingJobStatus
from drumline_contract import plain
from drumline_scheduler.model import (
    Gang,
    NodeOperator,
    NodeRequirement,
    Role,
    Slice,
    TaintEffect,
    Toleration,
    TolerationOperator,
    can_be_split,
    with_surplus,
)
from drumline_scheduler.placement.eligibility import QUARANTINE
from drumline_scheduler.resources import NOTHING, Resources

_GPU_TOLERATIONS = tuple(
    Toleration(key=taint, operator=TolerationOperator.EXISTS) for taint in GPU_TAINTS
)


def job_of(view: TrainingJobView) -> Job:
    """Convert a TrainingJob to the lifecycle's value.

    Raises:
        ApiError: the object breaks a rule. It was stored before the rule existed, or it comes from
            a file that no API server checked.
    """
    if problem := broken_name(view.name):
        raise problem
    return Job(
        namespace=view.namespace,
        name=view.name,
        uid=view.uid,
        resource_version=view.resource_version,
        object_generation=view.generation,
        created_at=parse_timestamp(view.creation_time),
        spec=parse(TrainingJobSpec, codec.spec_of(view), at="spec"),
        status=parse(TrainingJobStatus, codec.status_of(view), at="status"),
        deleting=bool(view.deletion_time),
    )


def effective_priority(job: Job, *, value: int | None, highest: int | None) -> int:
    """Return the priority by which a job is ordered, preempts and is preempted.

    An admitted job never exceeds the priority that it was admitted with, nor its queue's current
    limit. A running job cannot escape preemption by naming another class. A waiting job above its
    queue's limit is rejected, not clamped.

    Args:
        job: the job.
        value: value of its priority class. None if the class does not exist.
        highest: highest priority that its queue allows. None without a limit.
    """
    if job.status.assignment is None:
        return value or 0
    admitted = job.status.priority
    if value is None:
        value = admitted or 0
    limits = [limit for limit in (admitted, highest) if limit is not None]
    return min([value, *limits])


def readable_job_of(
    view: TrainingJobView, *, known: Job | None, specs: SharedSpecs | None = None
) -> Job:
    """Convert any TrainingJob. Unreadable parts are left out and become the job's verdict.

    Args:
        view: the object.
        known: the earlier version of the job. If it has the same uid, its spec replaces an
            unreadable one, except for `suspend`.
        specs: parsed specs of other jobs, to share equal ones. None: the spec is not shared.
    """
    spec, problem = (SharedSpecs() if specs is None else specs).read(view)
    # Keep the last readable spec of the same job, so that a running job does not lose its places.
    # Only `suspend` is taken from the new spec: a user must always be able to stop a job.
    if problem and known is not None and known.uid == view.uid and not known.unreadable:
        spec = known.spec.model_copy(update={"suspend": spec.suspend})
    return _job(view, spec, problem=problem)


def with_status_of(view: TrainingJobView, known: Job) -> Job:
    """Convert a later version of a job with the same spec. Only its status is parsed."""
    job = _job(view, known.spec, problem=None)
    return replace(job, verdict=known.verdict) if job.verdict is None else job


def _job(view: TrainingJobView, spec: TrainingJobSpec, *, problem: ApiError | None) -> Job:
    status, status_problem = parse_readable(TrainingJobStatus, codec.status_of(view), at="status")
    problem = problem or status_problem or broken_name(view.name)
    return Job(
        namespace=view.namespace,
        name=view.name,
        uid=view.uid,
        resource_version=view.resource_version,
        object_generation=view.generation,
        created_at=_seconds(view.creation_time),
        spec=spec,
        status=status,
        deleting=bool(view.deletion_time),
        verdict=problem and Refusal(reason=Reason.UNREADABLE, message=plain(str(problem))),
    )


def gang_of(
    job: Job,
    *,
    priority: int,
    platform_tolerations: tuple[Toleration, ...] = (),
    may_check: bool = False,
    retry_at: float = 0.0,
    retry_cause: str = "",
    added: Resources = NOTHING,
    predecessors: Standing = FREE,
    pool: GpuPoolSpec | None = None,
    queue_spot: str | None = None,
) -> Gang:
    """Convert a job to the scheduler's value.

    Args:
        job: the job.
        priority: effective priority of the job.
        platform_tolerations: tolerations that the platform adds to pods of the bundled trainer.
        may_check: whether the job may use quarantined nodes if it tolerates them.
        retry_at: earliest start, in seconds since the epoch.
        retry_cause: why the job backs off.
        added: requests that admission adds to each pod (`added_requests`).
        predecessors: state of the jobs that must end first.
        pool: the pool that the job names, if it names one that is known.
        queue_spot: rule of its queue about spot pools.
    """
    spec, status, sizes = job.spec, job.status, sizes_of(job)
    topology, deadline = spec.topology, spec.active_deadline_seconds
    gang = Gang(
        key=job.key,
        uid=job.uid,
        queue=spec.queue,
        nodes=spec.nodes,
        per_pod=planned_requests(job, pool=pool) + added,
        queued_at=job.queued_after(predecessors.ended_at),
        priority=priority,
        pool=spec.gpu_pool,
        pools=tuple(spec.gpu_pools or ()),
        price_rule=price_rule_of(spec),
        partition=spec.gpu_partition or "",
        may_share=_has_one_gpu(spec),
        required_level=topology.required if topology else None,
        preferred_level=topology.preferred if topology else None,
        slices=_slices(topology) if topology else _layout_slices(job, sizes),
        balanced_level=topology.balanced if topology else None,
        roles=_roles(job, added, pool=pool),
        selector=dict(spec.node_selector or {}),
        affinity=_affinity(spec.node_affinity),
        tolerations=_tolerations(job, platform=platform_tolerations, may_check=may_check),
        excluded_nodes=frozenset(entry.node for entry in status.avoided_nodes or ()),
        retry_at=retry_at,
        retry_cause=retry_cause,
        sizes=sizes if len(sizes) > 1 else (),
        user=plain(spec.user or ""),
        after=predecessors.unmet,
        max_runtime_seconds=None if deadline is None else float(deadline),
    )
    return _with_extras(gang, job, queue_spot=queue_spot)


def _with_extras(gang: Gang, job: Job, *, queue_spot: str | None) -> Gang:
    """Add the nominated nodes, the group and sweep, and the surplus to a gang."""
    nominated = job.status.nominated
    if nominated is not None:
        gang = replace(gang, nominated=nominated.node_names(), nominated_pool=nominated.gpu_pool)
    if job.spec.group is not None or job.spec.sweep is not None:
        gang = _with_group_and_sweep(gang, job)
    smallest = _size_without_surplus(job, gang, queue_spot=queue_spot)
    return gang if smallest is None else with_surplus(gang, smallest=smallest)


def _size_without_surplus(job: Job, gang: Gang, *, queue_spot: str | None) -> int | None:
    """Return the number of pods of the gang without its surplus. None if it has no surplus.

    A running job keeps the shape that it was admitted with, whatever its queue allows now. With a
    surplus it keeps it. Without one it stays in one pool if it is larger than its smallest size.
    """
    spec, assignment = job.spec, job.status.assignment
    if assignment is not None and assignment.surplus is not None:
        return base_size(job.status)
    if "Surplus" not in (spec.spot, queue_spot) or not can_be_split(gang):
        return None
    smallest = gang.legal_sizes[0]
    return smallest if assignment is None or job.size == smallest else None


def _with_group_and_sweep(gang: Gang, job: Job) -> Gang:
    spec, status = job.spec, job.status
    # A restarted job does not wait for its group again: their common start is over.
    again = status.generation is not None and status.assignment is None
    group = None if again else spec.group  # the common start is over
    return replace(
        gang,
        group=group.name if group else "",
        group_gangs=group.jobs if group else 1,
        sweep=spec.sweep.name if spec.sweep else "",
        sweep_limit=spec.sweep.max_parallel if spec.sweep else 1,
    )


def _has_one_gpu(spec: TrainingJobSpec) -> bool:
    return gang_gpus(spec, members=spec.nodes + role_pods(spec)) == 1


def _tolerations(
    job: Job, *, platform: tuple[Toleration, ...], may_check: bool
) -> tuple[Toleration, ...]:
    # Only jobs that check nodes may tolerate the quarantine. Other jobs' tolerations of it have no
    # effect.
    asked = (each for each in job.spec.tolerations or () if may_check or each.key != QUARANTINE)
    extra = platform if job.runs_trainer else ()
    return (*_GPU_TOLERATIONS, *map(_toleration, asked), *extra)


def _roles(job: Job, added: Resources, *, pool: GpuPoolSpec | None) -> tuple[Role, ...]:
    return tuple(
        Role(
            name=role.name, pods=role.nodes, per_pod=planned_requests(job, role, pool=pool) + added
        )
        for role in job.spec.roles or ()
    )


def platform_tolerations(raw: Iterable[Mapping[str, Any]]) -> tuple[Toleration, ...]:
    """Convert the tolerations of the setting DRUMLINE_TRAINER_POD.

    Raises:
        ApiError: an entry is not a valid toleration.
    """
    return tuple(_toleration(parse(ApiToleration, each, at="tolerations")) for each in raw)


def _seconds(time: str) -> float:
    try:
        return parse_timestamp(time)
    except ValueError:  # only in a file that nobody applied
        return 0.0


def added_requests(planned: Resources, seen: Mapping[str, int]) -> Resources:
    """Return the requests that admission added to a pod: sidecars, defaults, overhead.

    Counts CPU, memory and ephemeral storage only. The job's spec decides all other requests.

    Args:
        planned: requests of the pod that the spec states (`planned_requests`).
        seen: requests of the pod in the API server. CPU in thousandths of a core.
    """
    return Resources(
        cpu_millis=max(0, seen.get("cpu", 0) - planned.cpu_millis),
        memory_bytes=max(0, seen.get("memory", 0) - planned.memory_bytes),
        ephemeral_bytes=max(0, seen.get("ephemeral-storage", 0) - planned.ephemeral_bytes),
    )


def planned_requests(
    job: Job, role: RoleSpec | None = None, *, pool: GpuPoolSpec | None = None
) -> Resources:
    """Return one pod's requests as the kubelet counts them.

    It is the larger of container and init container, plus the sidecars that run beside both.
    """
    # Phase 1: the main container.
    requests = {name: amount(name, text) for name, text in main_requests(job, role).items()}
    # Phase 2: init containers run before it, so the larger request counts.
    if not job.runs_trainer and _has_init_container(job, role):
        for name, text in INIT_RESOURCES.items():
            requests[name] = max(requests.get(name, 0), amount(name, text))
    # Phase 3: sidecars run all the time, so their requests are added.
    template = job.spec.template if role is None else None
    for sidecar in (template and template.sidecars) or ():
        for name, text in sidecar_requests(sidecar).items():
            requests[name] = requests.get(name, 0) + amount(name, text)
    # Phase 4: GPUs, in the units of the pool, and the channel of a ComputeDomain.
    gpus = job.spec.gpus_per_node if role is None else role.gpus_per_node
    units = ANY_GPUS if pool is None else GpuUnits.of(pool)
    whole = "" if pool is None else pool.gpu_resource
    requests[job.spec.gpu_partition or whole] = gpus
    if gpus and job.spec.compute_domain is not None:
        requests[RESOURCE_CHANNEL] = 1
    return resources_of(requests, units=units, pods=1)


def _has_init_container(job: Job, role: RoleSpec | None) -> bool:
    """Return whether an init container of the operator prepares the pod.

    It waits for the gang, or copies the agent and the user's code.
    """
    if role is None or job.launch is None:
        return job.has_agents
    return job.spec.template is not None and job.spec.template.code is not None


def _layout_slices(job: Job, sizes: Sequence[int]) -> tuple[Slice, ...]:
    """Return the slices that the layout needs, if the job itself requests none."""
    hardware = job.verdict.hardware if isinstance(job.verdict, Schedulable) else None
    return layout_slices(job.spec, hardware, sizes=sizes)


def _slices(topology: TopologyRequest | None) -> tuple[Slice, ...]:
    """Return the requested slices, largest first. Each smaller slice lies within a larger one."""
    asked = (topology.slices if topology else None) or []
    return tuple(
        Slice(level=request.level, pods=request.nodes, required=request.required)
        for request in sorted(asked, key=lambda request: -request.nodes)
    )


def _affinity(affinity: NodeAffinity | None) -> tuple[tuple[NodeRequirement, ...], ...]:
    return tuple(
        tuple(
            NodeRequirement(
                key=expression.key,
                operator=NodeOperator(expression.operator),
                values=tuple(expression.values or ()),
            )
            for expression in term.match_expressions
        )
        for term in (affinity.required if affinity else ())
    )


def _toleration(toleration: ApiToleration) -> Toleration:
    return Toleration(
        key=toleration.key or "",
        operator=TolerationOperator(toleration.operator),
        value=toleration.value or "",
        effect=TaintEffect(toleration.effect) if toleration.effect else None,
    )
