"""Good specs are stored, with the defaults the models promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.api.conftest import GROUP, ROOT, VERSION, Server
from tests.integration.api.manifests import laid_over, manifest, template_job

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def test_ten_lines_are_a_job_and_the_rest_are_defaults(server: Server) -> None:
    text = (ROOT / "examples/first-job.yaml").read_text()
    assert len(text.splitlines()) == 10
    answer = server.create(yaml.safe_load(text), dry_run=True)
    assert answer.code == 201, answer.message
    assert answer.body["spec"] == {
        "queue": "research",
        "nodes": 2,
        "gpusPerNode": 2,
        "suspend": False,
        "startDeadlineSeconds": 600,
        "recovery": {
            "maxRestarts": 3,
            "maxOutOfMemoryRestarts": 1,
            "maxHangRestarts": 3,
            "budgetWindowSeconds": 86400,
            "hangTimeoutSeconds": 600,
            "lostAfterSeconds": 5,
            "maxFailedStarts": 5,
        },
        "trainer": {
            "model": "tiny",
            "steps": 100,
            "globalBatchSize": 16,
            "sequenceLength": 128,
            "precision": "fp32",
            "seed": 0,
        },
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_accepted(server: Server, path: Path) -> None:
    """Kubernetes' own kinds among them are kubeconform's: tests/unit/test_chart_schemas.py."""
    documents = [*yaml.safe_load_all(path.read_text())]
    ours = [each for each in documents if each["apiVersion"] == f"{GROUP}/{VERSION}"]
    assert ours
    for document in ours:
        answer = server.create(document, dry_run=True)
        assert answer.code == 201, answer.message


ACCEPTED: dict[str, dict[str, Any]] = {
    "an empty trainer": manifest("TrainingJob"),
    "a name of 50 characters": manifest("TrainingJob", name="a" * 50),
    "amounts as numbers": manifest("TrainingJob", resources={"cpu": 4, "memory": "1.5Gi"}),
    "devices that are no GPUs": manifest(
        "TrainingJob", resources={"rdma/hca": 1, "nvidia.com/hostdev": 1, "hugepages-2Mi": "1Gi"}
    ),
    "a required and a narrower preferred level": manifest(
        "TrainingJob", topology={"required": "block", "preferred": "rack"}
    ),
    "slices, the smaller ones within the larger": manifest(
        "TrainingJob",
        nodes=8,
        topology={
            "required": "block",
            "slices": [{"level": "clique", "nodes": 2}, {"level": "rack", "nodes": 4}],
            "balanced": "rack",
        },
    ),
    "an even spread alone": manifest("TrainingJob", topology={"balanced": "rack"}),
    "pools in order, for somebody, with others": manifest(
        "TrainingJob",
        gpuPools=["reserved", "spot"],
        user="oidc:ann@example.com",
        group={"name": "rl", "jobs": 2},
    ),
    "surplus on spot nodes": manifest(
        "TrainingJob",
        nodes=4,
        minNodes=2,
        trainer={"globalBatchSize": 64},
        checkpoint={"claimName": "saves"},
        gpuPools=["h100", "h100-spot"],
        topology={"preferred": "rack"},
        spot="Surplus",
    ),
    "a label with a long prefix": manifest(
        "TrainingJob", nodeSelector={f"{'a' * 253}/{'b' * 63}": ""}
    ),
    "a path of a name with dots": manifest(
        "TrainingJob", checkpoint={"claimName": "shared", "path": "runs/..a/b..c/.d"}
    ),
    "checkpoints in a bucket": manifest(
        "TrainingJob",
        checkpoint={"bucket": "s3://saves/team-a", "secretName": "keys", "path": "runs/a"},
    ),
    "checkpoints in the whole of a bucket": manifest(
        "TrainingJob", checkpoint={"bucket": "gs://saves"}
    ),
    "a toleration of a team's taint": manifest(
        "TrainingJob", tolerations=[{"key": "team", "value": "a", "effect": "NoSchedule"}]
    ),
    "another controller": manifest("TrainingJob", managedBy="kueue.x-k8s.io/multikueue"),
    "shared memory of one's own": template_job(
        volumes=[{"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}],
        volumeMounts=[{"name": "memory", "mountPath": "/dev/shm"}],  # noqa: S108
    ),
    "one volume at two places": template_job(
        volumes=[{"name": "a", "persistentVolumeClaim": {"claimName": "a"}}],
        volumeMounts=[
            {"name": "a", "mountPath": "/in", "subPath": "in", "readOnly": True},
            {"name": "a", "mountPath": "/etc/team", "subPath": "out"},
        ],
    ),
    "variables beside ours": template_job(
        env=[{"name": "NCCL_DEBUG", "value": "INFO"}, {"name": "RANKS", "value": ""}]
    ),
    "labels and groups of a site": template_job(
        labels={"team": "vision", "example.com/cost-center": "7"}, supplementalGroups=[1, 2000]
    ),
    "a command for each GPU, started by an agent": template_job(
        launch="PerGpu",
        command=["python3", "train.py"],
        volumes=[{"name": "a", "emptyDir": {}}],
        volumeMounts=[{"name": "a", "mountPath": "/opt/data"}],
    ),
    "a command on a terminal": template_job(command=["bash"], tty=True),
    "a command for each pod, started by an agent": template_job(
        launch="PerPod", command=["torchrun"], args=["--master-port=$(MASTER_PORT)", "train.py"]
    ),
    "a script whose imports are done before it starts": template_job(
        launch="PerGpu",
        command=["/env/bin/python3.12", "-u", "train.py"],
        preload=["torch", "torch.distributed", *(f"package.module{n}" for n in range(14))],
    ),
    "a notice by a signal of its own": template_job(
        launch="PerGpu", command=["python3", "train.py"], notice={"signal": "SIGUSR1"}
    ),
    "a notice by a file": template_job(
        launch="PerPod",
        command=["python3", "train.py"],
        notice={"signal": "None", "file": "/data/end-notice.json"},
    ),
    "figures by patterns": template_job(
        launch="PerGpu",
        command=["train"],
        hangDetection="Activity",
        progress={
            "patterns": [r"step (?P<step>\d+)", r"loss (?P<loss>\S+)"],
            "tensorBoard": {"folder": "/checkpoints/run/logs", "lossTag": "train/loss"},
        },
    ),
    "code that the image does not have": template_job(
        launch="PerGpu",
        command=["python3", "train.py"],
        code={"digest": f"sha256:{'0' * 64}", "configMaps": ["code-0", "code-1"]},
        volumes=[{"name": "a", "emptyDir": {}}],
        volumeMounts=[{"name": "a", "mountPath": "/code/data"}],
    ),
    "an image's own entry point, started by the kubelet": template_job(launch="Direct"),
    "a quota of nothing": manifest(
        "TrainingQueue",
        quotas=[{"gpuPool": "gpus", "nominalGpus": 0}],
        namespaces=["a", "b"],
        maxPriority=-1,
        stopPolicy="Hold",
    ),
    "a gang of any size": manifest(
        "TrainingJob", nodes=4, minNodes=1, checkpoint={"claimName": "shared"}
    ),
    "a gang of any size that runs a script": manifest(
        "TrainingJob",
        trainer=None,
        template={"image": "i", "launch": "PerPod", "command": ["train"]},
        nodes=4,
        minNodes=1,
    ),
    "a gang that is elastic in name only": manifest(
        "TrainingJob", nodes=4, minNodes=4, checkpoint={"claimName": "shared"}
    ),
    "no restart of any class": manifest(
        "TrainingJob",
        recovery={
            "maxRestarts": 0,
            "maxOutOfMemoryRestarts": 0,
            "maxHangRestarts": 0,
            "maxInfrastructureRestarts": 0,
        },
    ),
    "a queue of a cohort": manifest(
        "TrainingQueue",
        parent="department",
        quotas=[
            {
                "gpuPool": "gpus",
                "nominalGpus": 8,
                "borrowingLimitGpus": 0,
                "lendingLimitGpus": 8,
                "userLimitGpus": 0,
            }
        ],
        weight=3,
        preemption={"withinQueue": "Never", "reclaim": "FairShare"},
        minRuntimeSeconds=600,
    ),
    "a quota in percent, and the queue takes back what is above it": manifest(
        "TrainingQueue",
        parent="department",
        quotas=[{"gpuPool": "gpus", "nominalGpus": 0, "nominalPercent": 40, "lendingLimitGpus": 8}],
        aboveQuota="Evict",
    ),
    "a job before all others for a time": manifest(
        "TrainingQueue",
        overrides=[
            {
                "job": "team/launch.v2",
                "until": "2100-01-01T00:00:00Z",
                "grantedBy": "kubernetes-admin",
                "reason": "launch",
            }
        ],
    ),
    "a queue that suspends what is idle": manifest(
        "TrainingQueue", idle={"action": "Suspend", "afterSeconds": 604_800}
    ),
    "a queue with surplus on spot nodes": manifest("TrainingQueue", spot="Surplus"),
    "a queue that is drained": manifest("TrainingQueue", stopPolicy="HoldAndDrain"),
    "a queue for namespaces with labels": manifest(
        "TrainingQueue",
        namespaces=["a"],
        namespaceSelector={
            "matchLabels": {"team": "nlp", "example.com/stage": ""},
            "matchExpressions": [
                {"key": "tier", "operator": "NotIn", "values": ["free"]},
                {"key": "paused", "operator": "DoesNotExist"},
            ],
        },
    ),
    "a queue for all namespaces with a label of any value or none": manifest(
        "TrainingQueue", namespaceSelector={}
    ),
    "a queue whose budget the calendar refills": manifest(
        "TrainingQueue",
        budget={
            "gpuHours": 1,
            "refill": "Monthly",
            "creditGpuHours": 1,
            "whenSpent": "Expire",
            "cost": "999999999999.000001",
            "userGpuHours": 1,
        },
    ),
    "a queue with a budget of money alone": manifest(
        "TrainingQueue", budget={"cost": "0.000001", "windowDays": 1}
    ),
    "a queue with a budget for each user alone": manifest(
        "TrainingQueue", budget={"userGpuHours": 1, "refill": "Weekly"}
    ),
    "a queue with a budget": manifest(
        "TrainingQueue", budget={"gpuHours": 1_000_000_000, "windowDays": 92}
    ),
    "a pool that says what its GPUs are": manifest(
        "GpuPool",
        topologyLevels=[
            {"name": "rack", "nodeLabel": "topology.example.com/rack"},
            {"name": "clique", "nodeLabel": "nvidia.com/gpu.clique"},
        ],
        hardware={
            "gpu": "GB200",
            "domainGpus": 72,
            "domainLevel": "clique",
            "rackGpus": 72,
            "rackLevel": "rack",
            "oversubscription": 2,
            "whenMemoryExceeded": "Refuse",
        },
    ),
    "a layout that the ranks choose": manifest(
        "TrainingJob",
        nodes=8,
        trainer={"globalBatchSize": 4, "parallelism": {"mode": "Auto", "tensor": 2}},
    ),
    "roles beside a template": manifest(
        "TrainingJob",
        trainer=None,
        template={
            "image": "registry.example.com/train:1",
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
        roles=[
            {
                "name": name,
                "nodes": 256,
                "gpusPerNode": 8,
                "image": "tools:1",
                "command": ["serve"],
                "args": ["--port", "1"],
                "workingDir": "/srv",
                "env": [{"name": "A", "value": "1"}],
                "envFrom": [{"prefix": "WANDB_", "secretRef": {"name": "wandb"}}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                "resources": {"cpu": "500m", "rdma/hca": 1},
                "completesJob": True,
            }
            for name in ("launcher", "ps", "evaluator", "d", "e", "f", "g", "h")
        ],
    ),
    "a program that is held where it fails": laid_over(
        template_job(command=["train"], launch="PerGpu"),
        {"spec": {"recovery": {"holdSeconds": 3600}}},
    ),
    "what a template's pods may bring": template_job(
        initContainers=[
            {
                "name": "fetch",
                "image": "tools:1",
                "command": ["sh", "-c", "cp -r /in/. $HOME"],
                "env": [{"name": "A", "value": "1"}],
                "volumeMounts": [{"name": "bucket", "mountPath": "/in"}],
            }
        ],
        sidecars=[
            {
                "name": "proxy",
                "image": "proxy:1",
                "args": ["--listen=127.0.0.1:3128"],
                "env": [{"name": "A", "value": "1"}],
                "envFrom": [{"prefix": "PROXY_", "secretRef": {"name": "proxy"}}],
                "resources": {"cpu": "500m", "memory": "256Mi"},
                "volumeMounts": [{"name": "bucket", "mountPath": "/in"}],
            },
            {"name": "logs", "command": ["collect"]},
        ],
        envFrom=[
            {"prefix": "WANDB_", "secretRef": {"name": "wandb"}},
            {"prefix": "NCCL_", "configMapRef": {"name": "nccl", "optional": True}},
        ],
        volumes=[
            {
                "name": "bucket",
                "csi": {
                    "driver": "gcsfuse.csi.storage.gke.io",
                    "readOnly": True,
                    "volumeAttributes": {"bucketName": "corpus"},
                },
            },
            {
                "name": "scratch",
                "ephemeral": {
                    "volumeClaimTemplate": {
                        "spec": {
                            "accessModes": ["ReadWriteOncePod"],
                            "storageClassName": "fast",
                            "resources": {"requests": {"storage": "2Ti"}},
                        }
                    }
                },
            },
        ],
    ),
    "as many conditions on nodes as there may be": manifest(
        "TrainingJob",
        nodeAffinity={
            "required": [
                {
                    "matchExpressions": [
                        {
                            "key": f"k{i}",
                            "operator": "NotIn",
                            "values": [f"v{j}" for j in range(32)],
                        }
                        for i in range(8)
                    ]
                }
            ]
            * 4
        },
    ),
    "a pool that grows": manifest(
        "GpuPool",
        autoscaling={
            "maxNodes": 64,
            "timeoutSeconds": 600,
            "zones": ["a", "b"],
            "node": {
                "allocatable": {"nvidia.com/gpu": 8, "cpu": "180", "memory": "1900Gi"},
                "labels": {"topology.example.com/block": "b0"},
                "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}],
            },
        },
    ),
    "a spot pool of Karpenter's": manifest(
        "GpuPool",
        nodeSelector={"karpenter.sh/capacity-type": "spot"},
        capacity={"type": "Spot", "pricePerGpuHour": "999999.999999"},
    ),
    "a queue that pays little, for spot alone": manifest(
        "TrainingQueue", spot="Only", maxPricePerGpuHour="0"
    ),
    "a job that pays less than its queue": manifest(
        "TrainingJob", spot="Avoid", maxPricePerGpuHour="1.25"
    ),
    "a pool of other GPUs": manifest("GpuPool", gpuResource="amd.com/gpu"),
    "a pool with other devices": manifest(
        "GpuPool", auxiliaryResources=[f"{'a' * 60}.com/{'b' * 60}-{n}" for n in range(32)]
    ),
    "a pool of devices": manifest(
        "GpuPool",
        devices={"driver": "gpu.nvidia.com", "deviceClassName": ".".join(["a" * 62] * 4)},
    ),
    "a pool with partitions": manifest(
        "GpuPool",
        capacity={"type": "Reserved", "pricePerGpuHour": "2.50"},
        partitions={
            "partsPerGpu": 7,
            "resources": [
                {"resource": "nvidia.com/mig-1g.10gb", "parts": 1},
                {"resource": "nvidia.com/mig-7g.80gb", "parts": 7},
            ],
        },
    ),
    "a job with a compute domain": manifest("TrainingJob", nodes=2, computeDomain={}),
    "a job on a partition": manifest(
        "TrainingJob", gpuPool="mixed", gpuPartition="nvidia.com/mig-1g.10gb", gpusPerNode=1
    ),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_is_near_a_limit_is_accepted(server: Server, case: str) -> None:
    answer = server.create(ACCEPTED[case], dry_run=True)
    assert answer.code == 201, answer.message


def test_a_queue_that_says_nothing_of_preemption_may_preempt(server: Server) -> None:
    answer = server.create(manifest("TrainingQueue"), dry_run=True)
    assert answer.body["spec"]["preemption"] == {
        "withinQueue": "LowerPriority",
        "reclaim": "Any",
    }
    assert answer.body["spec"]["minRuntimeSeconds"] == 0


def test_overrides_are_stored_as_they_are(server: Server) -> None:
    overrides = {
        "optimizer": {"learning_rate": 0.001, "deep": {"er": [1, None, "x"]}},
        "flag": True,
    }
    answer = server.create(manifest("TrainingJob", trainer={"overrides": overrides}), dry_run=True)
    assert answer.body["spec"]["trainer"]["overrides"] == overrides
