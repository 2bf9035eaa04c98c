"""Views of workloads other than TrainingJobs that wait for a queue."""

from __future__ import annotations

import msgspec

from drumline.kube.views import PlacementView


class JobsView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Equal Jobs that make pods.

    Attributes:
        number: How many Jobs.
        ended: How many of them have succeeded, by the word of their owner.
        parallelism: Pods that each runs at a time.
        completions: Pods of each that have to succeed, without indexes that failed for good.
        succeeded: Of a Job by itself, how many have, by its own word.
    """

    number: int = 1
    ended: int = 0
    parallelism: int
    completions: int
    succeeded: int = 0


class ShapeView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Equal pods of a workload.

    Attributes:
        name: Of the part of the workload that they are; empty where it has one part.
        pods: How many of them run at a time, of those that are still to end.
        requests: Of each, by resource name, as kube-scheduler counts.
        placement: Where they may run.
        jobs: That make them; None: something else does.
        deadline_seconds: They are ended when they have run that long; None: they have no limit.
        claims: The PersistentVolumeClaims that their template names.
    """

    name: str
    pods: int
    requests: dict[str, int]
    placement: PlacementView
    jobs: JobsView | None = None
    deadline_seconds: int | None = None
    claims: tuple[str, ...] = ()


class WorkloadView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One Job or JobSet.

    Attributes:
        creation_time: RFC 3339.
        labels: only those with the prefix `drumline.dev/`.
        annotations: only those with the prefix `drumline.dev/`.
        is_child: whether another workload controls it, and starts it.
        suspended: whether it must have no pods.
        over: whether it has ended, or is being deleted.
        start_time: time of a Job's last resumption (RFC 3339). Empty if suspended or invalid.
        shapes: its pods.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    creation_time: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    is_child: bool = False
    suspended: bool = False
    over: bool = False
    start_time: str = ""
    shapes: tuple[ShapeView, ...] = ()
