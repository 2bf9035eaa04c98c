"""All objects that a cycle sees, from the API server, with the reader's own rights."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from drumline.kube import errors, reads
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials
from drumline.kube.kinds import (
    CSI_DRIVERS,
    CSI_NODES,
    DEVICE_TAINT_RULES,
    GPU_POOLS,
    JOB_SETS,
    JOBS,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    RUNTIME_CLASSES,
    STORAGE_CLASSES,
    TRAINING_JOBS,
    TRAINING_QUEUES,
    Resource,
)
from drumline.kube.workload_kinds import OTHER_KINDS
from drumline_api.base import LABEL_QUEUE
from drumline_cli.cluster_access import cluster_client, not_answered
from drumline_cli.manifests import ManifestDocument

# Without these kinds no decision is possible.
_KINDS: Final = (NODES, PRIORITY_CLASSES, GPU_POOLS, TRAINING_QUEUES, TRAINING_JOBS)
_WHERE_ALLOWED: Final = (
    (NAMESPACES, ""),
    (PERSISTENT_VOLUMES, ""),
    (PERSISTENT_VOLUME_CLAIMS, ""),
    (STORAGE_CLASSES, ""),
    (CSI_DRIVERS, ""),
    (CSI_NODES, ""),
    (RUNTIME_CLASSES, ""),
    (JOBS, LABEL_QUEUE),
    (JOB_SETS, LABEL_QUEUE),
    *((kind.resource, LABEL_QUEUE) for kind in OTHER_KINDS.values()),
    (RESOURCE_SLICES, ""),
    (RESOURCE_CLAIMS, ""),
    *((rules, "") for rules in DEVICE_TAINT_RULES),
)
"""Kinds that are read if the user may list them. A cycle reports a missing kind that matters."""
_SOURCE: Final = "the cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveObjects:
    """The objects of one moment."""

    manifests: tuple[ManifestDocument, ...]
    remarks: tuple[str, ...] = ()


async def read(credentials: Credentials) -> LiveObjects:
    """Everything; without pods for who may not list them: GPUs that pods of others hold seem free.

    Raises:
        NotAnswered: another kind may not be listed in the whole cluster.
    """
    # One time for all objects, although the answers arrive at different moments.
    as_of = time.time()
    try:
        async with cluster_client(credentials) as client, asyncio.TaskGroup() as reading:
            listed = [reading.create_task(_list(client, kind)) for kind in _KINDS]
            # Pods need rights on the whole cluster. Without them foreign usage is unknown.
            read_pods = reading.create_task(_list_if_allowed(client, PODS))
            allowed = [
                reading.create_task(_list_if_allowed(client, kind, which))
                for kind, which in _WHERE_ALLOWED
            ]
    except BaseExceptionGroup as failed:  # the other reads have been cancelled and have ended
        raise failed.exceptions[0] from None
    pods = read_pods.result()
    raws = [raw for each in (*listed, read_pods, *allowed) for raw in each.result() or ()]
    # The user must know that free GPUs may be occupied.
    remark = "Pods cannot be listed: GPUs held by pods outside of TrainingJobs count as free."
    return LiveObjects(
        manifests=documents(raws, as_of=as_of), remarks=() if pods is not None else (remark,)
    )


def documents(raws: Sequence[dict[str, Any]], *, as_of: float) -> tuple[ManifestDocument, ...]:
    """Return the objects of the API server as manifest documents."""
    return tuple(ManifestDocument(file=_SOURCE, raw=raw, find=None, as_of=as_of) for raw in raws)


async def _list(client: KubeClient, kind: Resource) -> list[dict[str, Any]]:
    try:
        items = await reads.list_all(client, kind)
        return [_typed(reads.document(item), kind) for item in items]
    except errors.KubeError as error:
        raise not_answered(error, what=f"{kind.plural} of the whole cluster") from None


async def _list_if_allowed(
    client: KubeClient, kind: Resource, labels: str = ""
) -> list[dict[str, Any]] | None:
    try:
        items = await reads.list_all(client, kind, label_selector=labels)
        return [_typed(reads.document(item), kind) for item in items]
    # A kind may be absent or forbidden. The cycle works without it.
    except (errors.Forbidden, errors.NotFound):
        return None
    except errors.KubeError as error:
        raise not_answered(error, what=kind.plural) from None


def _typed(raw: dict[str, Any], kind: Resource) -> dict[str, Any]:
    """Add the kind to an object. Built-in kinds omit it in the items of a list."""
    return {"apiVersion": kind.api_version, "kind": kind.kind, **raw}
