"""A large cluster in seconds: nodes, running gangs with their pods, and waiting jobs, all at rest.

The objects are written into etcd itself, as the API server would have stored them: the same through
the API server takes 100,000 requests and the better part of an hour. Nothing moves them afterwards:
no kubelets, no controllers. One small server answers for the agents of all gangs. The GpuPool and
the TrainingQueue, both named `bench`, are the caller's.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit
from uuid import UUID

from drumline.lifecycle import transitions
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.model.hardware import PoolGpus
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.signing_keys import SigningKeys
from drumline_api.trainingjob import TrainingJobSpec, TrainingJobStatus
from drumline_contract import AGENT_PORT
from tests.builders import pod_manifest
from tests.operator_process import SIGNING_KEY
from tools.bench.shapes import GPUS, NODES_PER_RACK
from tools.cluster import Cluster
from tools.cluster.kwok import fake_node
from tools.cluster.process import find

GANG: Final = 8
NAMESPACES: Final = 50
STORED_AT: Final = "2026-01-01T00:00:00Z"
_AT_SECONDS: Final = 1767225600.0
_BATCH: Final = 100
"""etcd takes 128 operations in a transaction."""
AGENTS_ADDRESS: Final = "127.99.0.1"
"""Of all pods: another one than those that KWOK gives, for tests may run beside the bench."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What is in the cluster.

    Attributes:
        nodes: of 8 GPUs each.
        running: gangs of 8 pods with one GPU each, on 8 nodes.
        waiting: jobs of 16 to 64 GPUs, half of them of the bundled trainer.
    """

    nodes: int
    running: int
    waiting: int

    @property
    def pods(self) -> int:
        return self.running * GANG


def fill(cluster: Cluster, size: Size) -> None:
    """Write the whole cluster; CRDs, pool and queue are there already."""
    etcd = _etcd_of(cluster)
    objects = _objects(size)
    while batch := list(islice(objects, _BATCH)):
        _store(etcd, batch)


def _objects(size: Size) -> Iterator[tuple[str, Json]]:
    for number in range(NAMESPACES):
        name = f"team-{number}"
        yield (
            f"namespaces/{name}",
            {
                **_head("v1", "Namespace", name, uid=number),
                "spec": {"finalizers": ["kubernetes"]},
                "status": {"phase": "Active"},
            },
        )
    for index in range(size.nodes):
        node = fake_node(index, gpus=GPUS, nodes_per_rack=NODES_PER_RACK)
        node["metadata"] |= {"uid": _uid(1, index), "creationTimestamp": STORED_AT}
        yield f"minions/{node['metadata']['name']}", node
    for index in range(size.running):
        job = _running_job(index, nodes=size.nodes)
        yield _job_document(
            job, job.status.model_dump(mode="json", by_alias=True, exclude_none=True)
        )
        for position in range(GANG):
            pod = _pod(job, position, number=index * GANG + position)
            yield f"pods/{job.namespace}/{pod['metadata']['name']}", pod
    for index in range(size.waiting):
        yield _job_document(_waiting_job(index), {})


def _running_job(index: int, *, nodes: int) -> Job:
    spec = {"queue": "bench", "nodes": GANG, "gpusPerNode": 1, "template": _template()}
    job = _job(f"running-{index}", spec, number=index, kind=2)
    first = index // GPUS * GANG  # 8 gangs share 8 nodes
    names = [f"fake-{(first + position) % nodes}" for position in range(GANG)]
    status = transitions.admitted(
        job,
        pool="bench",
        nodes=names,
        epoch=1,
        image="any:1",
        priority=0,
        now=_AT_SECONDS,
        signing_key=SigningKeys(current=SIGNING_KEY.encode()).current_id,
    )
    job = replace(job, status=status)
    return replace(job, status=transitions.running(job, now=_AT_SECONDS + 10))


def _waiting_job(index: int) -> Job:
    spec: Json = {"queue": "bench", "nodes": GANG, "gpusPerNode": 2 + index % (GPUS - 1)}
    if index % 2:
        trainer = {"model": "llama-1b", "globalBatchSize": GANG * spec["gpusPerNode"]}
        spec |= {"trainer": trainer, "checkpoint": {"claimName": "checkpoints"}}
    else:
        spec |= {"template": _template()}
    return _job(f"waiting-{index}", spec, number=index, kind=3)


def _template() -> Json:
    return {
        "image": "any:1",
        "command": ["python", "-m", "train", "--config", "/etc/train/config.yaml"],
        "env": [{"name": "NCCL_DEBUG", "value": "WARN"}, {"name": "OMP_NUM_THREADS", "value": "8"}],
    }


def _job(name: str, spec: Json, *, number: int, kind: int) -> Job:
    return Job(
        namespace=f"team-{number % NAMESPACES}",
        name=name,
        uid=_uid(kind, number),
        resource_version="1",
        object_generation=1,
        created_at=_AT_SECONDS,
        spec=TrainingJobSpec.model_validate(spec),
        status=TrainingJobStatus(),
    )


def _job_document(job: Job, status: Json) -> tuple[str, Json]:
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    document = {
        "apiVersion": "drumline.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.uid,
            "generation": 1,
            "creationTimestamp": STORED_AT,
            "managedFields": _managed_fields("drumline.dev/v1alpha1", spec),
        },
        "spec": spec,
        "status": status,
    }
    return f"drumline.dev/trainingjobs/{job.namespace}/{job.name}", document


def _pod(job: Job, position: int, *, number: int) -> Json:
    settings = PodSettings(trainer_image="trainer:1", join_image="operator:1")
    pod = pod_manifest(
        job, index=position, gpus=PoolGpus(resource="nvidia.com/gpu"), settings=settings
    )
    pod["metadata"] |= {
        "namespace": job.namespace,
        "uid": _uid(4, number),
        "creationTimestamp": STORED_AT,
        "managedFields": _managed_fields("v1", pod["spec"]),
    }
    spec = pod["spec"]
    pod["status"] = {
        "phase": "Running",
        "podIP": AGENTS_ADDRESS,
        "podIPs": [{"ip": AGENTS_ADDRESS}],
        "hostIP": "127.0.0.1",
        "startTime": STORED_AT,
        "qosClass": "Burstable",
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": STORED_AT}
            for kind in ("Ready", "ContainersReady", "Initialized", "PodScheduled")
        ],
        "containerStatuses": [_ran(each, running=True) for each in spec["containers"]],
        "initContainerStatuses": [
            _ran(each, running=False) for each in spec.get("initContainers", [])
        ],
    }
    return pod


def _ran(container: Json, *, running: bool) -> Json:
    ended = {"exitCode": 0, "reason": "Completed", "finishedAt": STORED_AT, "startedAt": STORED_AT}
    digest = "registry.example/training@sha256:" + "0" * 64
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": digest,
        "containerID": "containerd://" + "0" * 64,
        "restartCount": 0,
        "ready": True,
        "state": {"running": {"startedAt": STORED_AT}} if running else {"terminated": ended},
    }


def _managed_fields(version: str, spec: Json) -> list[Json]:
    """About as much as the API server keeps."""
    fields: Json = {f"f:{name}": {} for name in spec}
    return [
        {
            "manager": manager,
            "operation": "Update",
            "apiVersion": version,
            "time": STORED_AT,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:labels": {".": {}}}, "f:spec": fields},
        }
        for manager in ("drumline", "kubelet")
    ]


def _head(version: str, kind: str, name: str, *, uid: int) -> Json:
    metadata = {
        "name": name,
        "uid": _uid(5, uid),
        "generation": 1,
        "creationTimestamp": STORED_AT,
        "labels": {"kubernetes.io/metadata.name": name},
    }
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _uid(kind: int, number: int) -> str:
    return str(UUID(int=kind << 64 | number + 1))


def _etcd_of(cluster: Cluster) -> str:
    (etcd,) = [each for each in find(cluster.folder) if each.role == "etcd"]
    for word in Path(f"/proc/{etcd.pid}/cmdline").read_text().split("\0"):
        if word.startswith("--listen-client-urls="):
            return word.partition("=")[2]
    raise LookupError(f"etcd (process {etcd.pid}) names no address for clients")


def _store(etcd: str, documents: Iterable[tuple[str, Json]]) -> None:
    puts = [
        {"requestPut": {"key": _base64(f"/registry/{key}"), "value": _base64(json.dumps(value))}}
        for key, value in documents
    ]
    address = urlsplit(etcd)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=60)
    connection.request("POST", "/v3/kv/txn", body=json.dumps({"success": puts}))
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status >= HTTPStatus.BAD_REQUEST:
        raise RuntimeError(f"etcd: {answer.status} {text[:300]!r}")


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class Agents:
    """One server that takes the record of every gang."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer((AGENTS_ADDRESS, AGENT_PORT), _AnyAgent)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _AnyAgent(BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass
