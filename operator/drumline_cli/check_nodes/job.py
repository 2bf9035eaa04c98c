"""The job that checks nodes: one pod with all GPUs on each. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from drumline.overview.nodes import QUARANTINED, READY
from drumline.overview.rows import NodeRow
from drumline_api.base import GROUP, VERSION
from drumline_cli.errors import BadInput, NotAnswered

Json = dict[str, Any]

COMMAND: Final = (
    *("python3", "-m", "torch.distributed.run"),
    *("-m", "drumline_trainer", "check-nodes"),
)
"""torchrun finds its gang in the variables of the pod. Without an agent of ours: its folder would
hide the trainer's in this image, and a check that fails is not to be started again."""
_GRACE_SECONDS: Final = 1
"""Grace period. Nothing is saved, so other jobs get the GPUs immediately."""
HOST_LABEL: Final = "kubernetes.io/hostname"
_TERMS, _VALUES = 4, 32
MOST_NODES: Final = _TERMS * _VALUES
"""Maximum number of nodes per job, the limit of its node affinity."""
_DEADLINE_SECONDS: Final = 900
_KEPT_SECONDS: Final = 3600
_TOLERATION: Final = {"key": "drumline.dev/quarantined", "operator": "Exists"}


def nodes_to_check(rows: Sequence[NodeRow], *, pool: str, names: Sequence[str]) -> list[NodeRow]:
    """Return the nodes of a pool that no job holds, those first that something speaks against.

    Args:
        rows: all nodes.
        pool: their pool.
        names: the only ones that are wanted; empty: all. They may be busy: then the job waits.

    Raises:
        BadInput: a node that was named is not in the pool.
        NotAnswered: none is idle.
    """
    if not any(row.pool == pool for row in rows):
        pools = ", ".join(sorted({row.pool for row in rows if row.pool})) or "none"
        raise NotAnswered(f"no pool {pool!r} has nodes; pools with nodes: {pools}")
    inside = {row.node: row for row in rows if row.pool == pool and _gpus(row)}
    if strangers := [name for name in names if name not in inside]:
        raise BadInput(f"node {strangers[0]!r} is not in pool {pool!r}, or has no GPUs")
    usable = [inside[name] for name in names] or [
        row
        for row in inside.values()
        if row.state in {READY, QUARANTINED} and not row.held_gpus and not row.promised_to
    ]
    if not usable:
        raise NotAnswered(f"no node of pool {pool!r} is idle")
    # Pods of a gang are equal: of several sizes of nodes the most frequent is checked.
    sizes = [_gpus(row) for row in usable]
    size = max(sorted(set(sizes)), key=sizes.count)
    alike = [row for row in usable if _gpus(row) == size]
    return sorted(alike, key=lambda row: (not row.why, row.node))[:MOST_NODES]


def _gpus(row: NodeRow) -> int:
    """Return the whole GPUs of a node: parts of them are not checked."""
    return row.gpus if row.whole_gpus is None else row.whole_gpus


def check_job(
    name: str, nodes: Sequence[NodeRow], *, queue: str, image: str, device: str | None
) -> Json:
    """Return the TrainingJob.

    Args:
        name: name of the job.
        nodes: nodes to check.
        queue: queue that is charged.
        image: image of the trainer.
        device: `cpu` for a test without GPUs.
    """
    names = [row.node for row in nodes]
    terms = [
        {"matchExpressions": [{"key": HOST_LABEL, "operator": "In", "values": part}]}
        for part in (names[at : at + _VALUES] for at in range(0, len(names), _VALUES))
    ]
    command = [*COMMAND, *(() if device is None else ("--device", device))]
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "queue": queue,
            "gpuPool": nodes[0].pool,
            "nodes": len(nodes),
            "gpusPerNode": _gpus(nodes[0]),
            "nodeAffinity": {"required": terms},
            "tolerations": [_TOLERATION],
            "activeDeadlineSeconds": _DEADLINE_SECONDS,
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "recovery": {"maxRestarts": 0},
            "template": {
                "image": image,
                "command": command,
                "terminationGracePeriodSeconds": _GRACE_SECONDS,
            },
        },
    }
