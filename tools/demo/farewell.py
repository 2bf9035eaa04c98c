"""The end of the demo: what the jobs did, and how to look around."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tools.cluster import Cluster
from tools.cluster.binaries import binary_path
from tools.cluster.images import TRAINER_IMAGE
from tools.demo.changes import placement
from tools.demo.site import NAMESPACE
from tools.install import SITE_PACKAGES_CLAIM, SYSTEM_NAMESPACE

Json = dict[str, Any]

OWN_SCRIPT = (
    f".venv/bin/drumline run -n {NAMESPACE} -q research -N2 -G2 --folder FOLDER"
    f" --image {TRAINER_IMAGE} --claim {SITE_PACKAGES_CLAIM}=/opt/site-packages"
    " -- python3 train.py"
)
"""Command for a user's script. The trainer's image mounts the packages of this checkout."""
_HEAD = ("job", "phase", "steps", "loss", "checkpoints kept", "waited", "ran", "where")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one finished job left."""

    name: str
    status: Json
    losses: tuple[float, ...]
    checkpoints: tuple[str, ...]


def outcome(job: Json, *, checkpoints: Path) -> Outcome:
    """Read what rank 0 left beside the checkpoints of a job."""
    metadata = job["metadata"]
    folder = checkpoints / f"{metadata['name']}-{metadata['uid'][:8]}"
    history = folder / "metrics.jsonl"
    lines = history.read_text().splitlines() if history.exists() else []
    return Outcome(
        name=metadata["name"],
        status=job.get("status", {}),
        losses=tuple(json.loads(line)["loss"] for line in lines),
        checkpoints=tuple(sorted(path.name for path in folder.glob("step-" + "[0-9]" * 8))),
    )


def table(outcomes: Sequence[Outcome], *, racks: Mapping[str, str]) -> list[str]:
    """One line a job under a line of heads."""
    rows = [_HEAD, *(_row(each, racks=racks) for each in outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def around(cluster: Cluster, *, first_job: str, down: str) -> list[str]:
    """Commands to look around with; they can be pasted."""
    kubectl = binary_path("kubectl").parent
    return [
        "Look around (the cluster stays up):",
        f"  export KUBECONFIG={cluster.kubeconfig} PATH={kubectl}:$PATH",
        "  kubectl get trainingjobs -A -o wide",
        "  kubectl get trainingqueues,gpupools",
        f"  kubectl describe trainingjob -n {NAMESPACE} {first_job}",
        f"  kubectl logs -n {NAMESPACE} {first_job}-0-g1                # rank 0's pod",
        f"  kubectl logs -n {SYSTEM_NAMESPACE} deploy/drumline-operator   # JSON lines",
        "Metrics:",
        f"  kubectl port-forward -n {SYSTEM_NAMESPACE} deploy/drumline-operator 8080 &",
        "  curl -s localhost:8080/metrics | grep ^drumline_",
        "A job of your own:",
        f"  kubectl apply -n {NAMESPACE} -f examples/first-job.yaml",
        f"  kubectl get trainingjobs -n {NAMESPACE} --watch",
        "To run train.py of your folder FOLDER:",
        f"  {OWN_SCRIPT}",
        f"When you have seen enough: {down}",
    ]


def _row(done: Outcome, *, racks: Mapping[str, str]) -> tuple[str, ...]:
    status = done.status
    losses = f"{done.losses[0]:.2f} -> {done.losses[-1]:.2f}" if done.losses else "-"
    return (
        done.name,
        status.get("phase", "-"),
        f"{status.get('step', '-')}/{status.get('totalSteps', '-')}",
        losses,
        ", ".join(name.removeprefix("step-").lstrip("0") for name in done.checkpoints) or "-",
        _between(status, "queuedAt", "admittedAt"),
        _between(status, "startedAt", "finishedAt"),
        placement(status, racks=racks),
    )


def _between(status: Json, begin: str, end: str) -> str:
    if begin not in status or end not in status:
        return "-"
    seconds = (_time(status[end]) - _time(status[begin])).total_seconds()
    # A job's creation has whole seconds, and its placement may be read a moment before.
    return f"{max(0, round(seconds))} s"


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
