"""Small builders: what a test does not say has a plain default."""

from __future__ import annotations

from typing import Any

from drumline.lifecycle import transitions
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.manifests.pods import pod_manifests
from drumline.lifecycle.model.hardware import PoolGpus
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import GangMember, members_of
from drumline.lifecycle.model.observed import Observed, PodEnd, PodFacts
from drumline.lifecycle.plan.start_check import StartRefusal
from drumline_api.trainingjob import TrainingJobSpec, TrainingJobStatus
from drumline_contract import FinalReport, Progress, pod_name

T0 = 1_700_000_000.0
EPOCH = 7


def a_job(*, name: str = "llama", **spec: Any) -> Job:
    """A job of two nodes with two GPUs each that runs the bundled trainer."""
    if "template" not in spec:
        spec.setdefault("trainer", {"model": "tiny", "steps": 100})
    fields = {"queue": "research", "nodes": 2, "gpusPerNode": 2, **spec}
    return Job(
        namespace="team",
        name=name,
        uid="11111111-2222-3333-4444-555555555555",
        resource_version="1",
        object_generation=1,
        created_at=T0,
        spec=TrainingJobSpec.model_validate(fields),
        status=TrainingJobStatus(),
    )


def with_status(job: Job, status: TrainingJobStatus | None) -> Job:
    """The job as it is after this status was written."""
    assert status is not None
    return Job(
        **{
            name: getattr(job, name)
            for name in (
                "namespace",
                "name",
                "uid",
                "resource_version",
                "object_generation",
                "created_at",
                "spec",
            )
        },
        status=status,
    )


def with_spec(job: Job, **changes: Any) -> Job:
    """The job after the user changed its spec."""
    return Job(
        **{
            name: getattr(job, name)
            for name in (
                "namespace",
                "name",
                "uid",
                "resource_version",
                "object_generation",
                "created_at",
                "status",
            )
        },
        spec=job.spec.model_copy(update=changes),
    )


def admitted(
    job: Job,
    *,
    nodes: tuple[str, ...] = ("node-a", "node-b"),
    at: float = T0,
    image: str = "trainer:1",
    agent_image: str | None = None,
) -> Job:
    """The job with its places."""
    status = transitions.admitted(
        job,
        pool="h100",
        nodes=nodes,
        epoch=EPOCH,
        image=image,
        agent_image=agent_image,
        priority=0,
        now=at,
    )
    return with_status(job, status)


def running(job: Job, *, at: float = T0) -> Job:
    """The job with all members training."""
    return with_status(job, transitions.running(job, now=at))


def a_pod(job: Job, index: int, *, generation: int | None = None, **facts: Any) -> PodFacts:
    """The pod of a member that has just been created; a pod of another generation is an orphan."""
    members = {member.index: member for member in members_of(job.status)}
    member = members.get(index, GangMember(index=index, node="node-a", pod_generation=1))
    born = generation if generation is not None else member.pod_generation
    return PodFacts(
        name=pod_name(job.name, index, born),
        uid=f"pod-{index}-{born}",
        index=index,
        generation=born,
        node=facts.pop("node", member.node),
        **facts,
    )


def ready_pods(job: Job) -> tuple[PodFacts, ...]:
    """All members, each with an address and ready."""
    return tuple(
        a_pod(job, member.index, ip=f"10.0.0.{member.index + 1}", ready=True)
        for member in members_of(job.status)
    )


def ended(
    *, exit_code: int | None = 0, reason: str = "", message: str = "", at: float | None = None
) -> PodEnd:
    """How a pod ended."""
    return PodEnd(
        succeeded=exit_code == 0,
        exit_code=exit_code,
        reason=reason,
        message=message,
        ended_at=at,
    )


def report(*, step: int = 100, loss: float = 2.5, error: str = "", **progress: Any) -> str:
    """A termination message as an agent writes it."""
    figures = Progress(step=step, total_steps=100, loss=loss, **progress)
    return FinalReport(progress=figures, error=error).encode().decode()


def observed(*pods: PodFacts, **rest: Any) -> Observed:
    """What the caches show."""
    return Observed(pods=pods, **rest)


def pod_manifest(job: Job, *, index: int, gpus: PoolGpus, settings: PodSettings) -> dict[str, Any]:
    """The pod of one member."""
    (manifest,) = pod_manifests(job, indices=(index,), gpus=gpus, settings=settings)
    return manifest


async def may_start(
    job: Job, *, replaces: bool, leaving: object, beside: object, promised: object
) -> StartRefusal | None:
    """A check of a start to which nothing is known to object."""
    del job, replaces, leaving, beside, promised
