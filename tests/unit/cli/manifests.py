"""A TrainingJob as the API server prints it; what a test does not say has a plain default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from drumline_cli.formatting import moment
from drumline_cli.report.builder import build_report
from drumline_cli.report.job_input import JobInput, job_input
from drumline_cli.report.model import JobReport

AS_OF = "2026-11-21T06:55:30Z"


def a_manifest(*, name: str = "llama", status: dict[str, Any] | None = None, **spec: Any) -> Any:
    """Four nodes with eight GPUs each; running unless `status` says otherwise."""
    fields = {
        "queue": "research",
        "nodes": 4,
        "gpusPerNode": 8,
        "trainer": {"steps": 20_000, "globalBatchSize": 256, "sequenceLength": 2048},
        "checkpoint": {"claimName": "checkpoints"},
        **spec,
    }
    return {
        "apiVersion": "drumline.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": "0b3c",
            "creationTimestamp": "2026-11-21T05:00:00Z",
        },
        "spec": fields,
        "status": a_running_status() if status is None else status,
    }


def a_running_status(**changes: Any) -> dict[str, Any]:
    """Waited from 05:00, started at 05:14, runs since 05:15:40."""
    return {
        "phase": "Running",
        "reason": "Training",
        "generation": 3,
        "assignment": {"gpuPool": "gpus", "prefix": "node-", "nodes": ["1", "2", "5", "4"]},
        "queuedAt": "2026-11-21T05:00:02Z",
        "admittedAt": "2026-11-21T05:14:02Z",
        "startedAt": "2026-11-21T05:15:40Z",
        "ready": "4/4",
        "step": 4210,
        "totalSteps": 20_000,
        "loss": "2.4365",
        "tokensPerSecond": 812_345,
        "checkpoint": {"step": 4000, "digest": "3804c73aaad6"},
        **changes,
    }


def an_incident(**changes: Any) -> dict[str, Any]:
    """A node that went away and was replaced within 16.41 s."""
    return {
        "generation": 3,
        "attempt": 0,
        "faultClass": "Infrastructure",
        "cause": "pod 2 has not been heard for 5 s",
        "index": 2,
        "pod": "llama-2-g1",
        "node": "node-3",
        "faultAt": "2026-11-21T06:41:12Z",
        "detectMilliseconds": 5104,
        "decideMilliseconds": 212,
        "replaceMilliseconds": 8930,
        "rendezvousMilliseconds": 304,
        "restoreMilliseconds": 1220,
        "firstStepMilliseconds": 640,
        "failedStep": 3804,
        "restoredStep": 3802,
        "stepsLost": 2,
        "tier": "Peer",
        **changes,
    }


def an_event(**changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "llama.17", "namespace": "team"},
        "regarding": {"kind": "TrainingJob", "name": "llama", "namespace": "team", "uid": "0b3c"},
        "reason": "MemberReplaced",
        "type": "Warning",
        "note": "pod llama-2-g1 was lost",
        "deprecatedLastTimestamp": "2026-11-21T06:41:19Z",
        **changes,
    }


def a_job_input(manifest: Any = None, *events: Any, as_of: str = AS_OF) -> JobInput:
    moment_of_reading = moment(as_of)
    assert moment_of_reading is not None
    return job_input(manifest or a_manifest(), events=events, as_of=moment_of_reading)


def a_report(manifest: Any = None, *events: Any, as_of: str = AS_OF) -> JobReport:
    return build_report(a_job_input(manifest, *events, as_of=as_of))


def as_yaml(*documents: Any) -> str:
    return yaml.safe_dump_all(documents, sort_keys=False)


def kubeconfig(folder: Path, server: str) -> Path:
    file = folder / "kubeconfig"
    context = {"cluster": "c", "user": "u", "namespace": "team"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "here", "context": context}],
    }
    file.write_text(yaml.safe_dump(document))
    return file
