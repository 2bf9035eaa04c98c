"""Bad specs are refused by the API server, with a message that names the field and the fix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from drumline.api.crds import DEFINITIONS, Definition
from tests.integration.api.conftest import Server
from tests.integration.api.manifests import Json, laid_over, manifest, template_job

LONG = "a" * 64


@dataclass(frozen=True, slots=True)
class Bad:
    """One bad object and what the refusal must say."""

    why: str
    body: dict[str, Any]
    field: str
    fix: str


def job(why: str, field: str, fix: str, /, name: str = "probe", **changes: Any) -> Bad:
    return Bad(why, manifest("TrainingJob", name=name, **changes), field, fix)


def own(why: str, field: str, fix: str, /, **changes: Any) -> Bad:
    return Bad(why, template_job(**changes), field, fix)


def claim_of_pod(*, storage: str) -> Json:
    return {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": storage}}}}}


def role(why: str, field: str, fix: str, /, spec: Json | None = None, **changes: Any) -> Bad:
    roles = [{"name": "launcher", **changes}]
    return Bad(
        why, laid_over(template_job(), {"spec": {**(spec or {}), "roles": roles}}), field, fix
    )


def env(why: str, *variables: dict[str, Any], field: str, fix: str) -> Bad:
    return Bad(why, template_job(env=list(variables)), field, fix)


def mount(why: str, path: str, fix: str, /, **more: Any) -> Bad:
    body = template_job(
        volumes=[{"name": "data", "emptyDir": {}}],
        volumeMounts=[{"name": "data", "mountPath": path, **more}],
    )
    field = "spec.template.volumeMounts[0]." + ("subPath" if "subPath" in more else "mountPath")
    return Bad(why, body, field, fix)


def queue(why: str, field: str, fix: str, /, name: str = "probe", **changes: Any) -> Bad:
    return Bad(why, manifest("TrainingQueue", name=name, **changes), field, fix)


def pool(why: str, field: str, fix: str, /, name: str = "probe", **changes: Any) -> Bad:
    return Bad(why, manifest("GpuPool", name=name, **changes), field, fix)


def node_condition(why: str, fix: str, /, **expression: Any) -> Bad:
    term = {"matchExpressions": [{"key": "zone", **expression}]}
    body = manifest("TrainingJob", nodeAffinity={"required": [term]})
    return Bad(why, body, "spec.nodeAffinity.required[0].matchExpressions[0].values", fix)


def growing(why: str, field: str, fix: str, /, **changes: Any) -> Bad:
    fields = {
        "mode": "Placeholders",
        "maxNodes": 4,
        "node": {"allocatable": {"nvidia.com/gpu": 8}},
        **changes,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    return Bad(why, manifest("GpuPool", autoscaling=given), f"spec.autoscaling.{field}", fix)


def profile(why: str, field: str, fix: str, /, **fields: Any) -> Bad:
    return Bad(why, manifest("GpuPool", podProfile=fields), f"spec.podProfile.{field}", fix)


ENV0 = "spec.template.env[0]"
SET_BY_US = "remove it (the launch variables are there already)"
CLAIM = {"claimName": "shared"}
IN_BUCKET = {"bucket": "s3://checkpoints/team-a"}

ELASTIC = {"nodes": 4, "minNodes": 2, "checkpoint": CLAIM}

JOBS = [
    job(
        "a partition of any pool",
        "spec.gpuPartition",
        "name it in gpuPool",
        gpuPool=None,
        gpuPartition="nvidia.com/mig-1g.10gb",
        gpusPerNode=1,
    ),
    job(
        "several partitions in a pod",
        "spec.gpusPerNode",
        "set gpusPerNode to 1",
        gpuPool="mixed",
        gpuPartition="nvidia.com/mig-1g.10gb",
        gpusPerNode=2,
    ),
    job(
        "a compute domain of one node",
        "spec.computeDomain",
        "joins the GPUs of several nodes",
        nodes=1,
        computeDomain={},
    ),
    job(
        "a compute domain of partitions",
        "spec.computeDomain",
        "joins whole GPUs",
        nodes=2,
        gpuPool="mixed",
        gpuPartition="nvidia.com/mig-1g.10gb",
        gpusPerNode=1,
        computeDomain={},
    ),
    job(
        "no least node", "spec.minNodes", "greater than or equal to 1", **{**ELASTIC, "minNodes": 0}
    ),
    job("more least nodes than nodes", "spec.minNodes", "lower it", **{**ELASTIC, "minNodes": 5}),
    job(
        "elastic without checkpoints",
        "spec.minNodes",
        "add checkpoint.claimName or template.launch",
        nodes=4,
        minNodes=2,
    ),
    Bad(
        "elastic with a template that no agent starts",
        manifest("TrainingJob", trainer=None, template={"image": "i"}, nodes=4, minNodes=2),
        "spec.minNodes",
        "minNodes needs trainer and checkpoint",
    ),
    job(
        "negative out-of-memory restarts",
        "spec.recovery.maxOutOfMemoryRestarts",
        "greater than or equal to 0",
        recovery={"maxOutOfMemoryRestarts": -1},
    ),
    job(
        "negative hang restarts",
        "spec.recovery.maxHangRestarts",
        "greater than or equal to 0",
        recovery={"maxHangRestarts": -1},
    ),
    job(
        "negative infrastructure restarts",
        "spec.recovery.maxInfrastructureRestarts",
        "greater than or equal to 0",
        recovery={"maxInfrastructureRestarts": -1},
    ),
    job("another answer to idle GPUs", "spec.whenIdle", '"Keep"', whenIdle="Suspend"),
    job(
        "a window of a second",
        "spec.recovery.budgetWindowSeconds",
        "greater than or equal to 60",
        recovery={"budgetWindowSeconds": 1},
    ),
    job(
        "hangs found too early",
        "spec.recovery.hangTimeoutSeconds",
        "greater than or equal to 10",
        recovery={"hangTimeoutSeconds": 5},
    ),
    job(
        "the bundled trainer is not held",
        "spec.recovery.holdSeconds",
        "add template.launch, or remove holdSeconds",
        recovery={"holdSeconds": 60},
    ),
    Bad(
        "nobody can hold what the kubelet starts",
        laid_over(template_job(), {"spec": {"recovery": {"holdSeconds": 60}}}),
        "spec.recovery.holdSeconds",
        "add template.launch, or remove holdSeconds",
    ),
    job(
        "held for ever",
        "spec.recovery.holdSeconds",
        "less than or equal to 86400",
        trainer=None,
        template={"image": "a", "command": ["a"], "launch": "PerPod"},
        recovery={"holdSeconds": 86_401},
    ),
    job(
        "lost at the first missed beat",
        "spec.recovery.lostAfterSeconds",
        "greater than or equal to 2",
        recovery={"lostAfterSeconds": 1},
    ),
    job("no queue", "spec.queue", "Required value", queue=None),
    job("queue in capitals", "spec.queue", "[a-z0-9]", queue="Research"),
    job("queue name too long", "spec.queue", "may not be more than 63", queue=LONG),
    job("empty queue name", "spec.queue", "at least 1 chars long", queue=""),
    job("misspelt field", 'unknown field "spec.nodez"', "strict decoding error", nodez=2),
    job(
        "misspelt field below",
        'unknown field "spec.trainer.learningRate"',
        "strict decoding error",
        trainer={"learningRate": 0.1},
    ),
    job("name with a dot", "metadata.name", "choose a shorter name", name="llama-3.1"),
    job("name too long for its pods", "metadata.name", "at most 50 characters", name="a" * 51),
    job("neither trainer nor template", "spec", "exactly one of trainer and", trainer=None),
    job(
        "both trainer and template",
        "spec",
        "exactly one of trainer and template",
        template={"image": "i"},
    ),
    job("no nodes", "spec.nodes", "greater than or equal to 1", nodes=0),
    job("nodes as text", "spec.nodes", "must be of type integer", nodes="two"),
    job("half a node", "spec.nodes", "must be of type integer", nodes=1.5),
    job("too many nodes", "spec.nodes", "less than or equal to 10000", nodes=10_001),
    job("no GPUs", "spec.gpusPerNode", "greater than or equal to 1", gpusPerNode=0),
    job("too many GPUs a node", "spec.gpusPerNode", "less than or equal to 64", gpusPerNode=65),
    job(
        "too many GPUs in all",
        "spec.nodes",
        "lower one of them",
        nodes=10_000,
        gpusPerNode=16,
        trainer={"globalBatchSize": 160_000},
    ),
    job(
        "batch does not split",
        "spec.trainer.globalBatchSize",
        "16 does not split evenly over 6 ranks (nodes x gpusPerNode); use a multiple, for instance"
        " 18",
        nodes=3,
        gpusPerNode=2,
    ),
    job(
        "ranks do not divide by the degrees",
        "spec.trainer.parallelism",
        "must be a multiple of tensor x context x pipeline",
        nodes=3,
        trainer={"globalBatchSize": 24, "parallelism": {"tensor": 2}},
    ),
    job(
        "batch does not split over what the degrees leave",
        "spec.trainer.globalBatchSize",
        "ranks that see different samples",
        nodes=6,
        trainer={"globalBatchSize": 16, "parallelism": {"tensor": 2}},
    ),
    job(
        "copies without shards",
        "spec.trainer.parallelism.replicate",
        "replicate is for dataParallel fsdp",
        nodes=2,
        trainer={"parallelism": {"dataParallel": "ddp", "replicate": 2}},
    ),
    job(
        "ranks that choose do not divide by the degrees that are written",
        "spec.trainer.parallelism",
        "must be a multiple of tensor x context x pipeline",
        nodes=3,
        trainer={"parallelism": {"mode": "Auto", "tensor": 2}},
    ),
    job(
        "unknown mode",
        "spec.trainer.parallelism.mode",
        '"Auto"',
        trainer={"parallelism": {"mode": "auto"}},
    ),
    job(
        "unknown schedule",
        "spec.trainer.parallelism.schedule",
        '"zbv"',
        trainer={"parallelism": {"schedule": "fastest"}},
    ),
    job("unknown model", "spec.trainer.model", '"llama-8b"', trainer={"model": "lama-8b"}),
    job("no steps", "spec.trainer.steps", "greater than or equal to 1", trainer={"steps": 0}),
    job("unknown precision", "spec.trainer.precision", '"bf16"', trainer={"precision": "fp8"}),
    job(
        "sequence too short",
        "spec.trainer.sequenceLength",
        "greater than or equal to 8",
        trainer={"sequenceLength": 1},
    ),
    job("negative seed", "spec.trainer.seed", "greater than or equal to 0", trainer={"seed": -1}),
    job("image with a space", "spec.trainer.image", "should match", trainer={"image": "a b"}),
    job(
        "overrides as text",
        "spec.trainer.overrides",
        "must be of type object",
        trainer={"overrides": "lr=1"},
    ),
    job(
        "overrides without end",
        "spec.trainer.overrides",
        "at most 32 items",
        trainer={"overrides": {f"key{index}": 1 for index in range(33)}},
    ),
    job("data without a claim", "spec.trainer.data.claimName", "Required", trainer={"data": {}}),
    job(
        "data path climbs out",
        "spec.trainer.data.path",
        "relative to the volume",
        trainer={"data": {**CLAIM, "path": "books/../../other"}},
    ),
    job(
        "data pattern climbs out",
        "spec.trainer.data.pattern",
        "relative to the volume",
        trainer={"data": {**CLAIM, "pattern": "../*"}},
    ),
    job("checkpoint nowhere", "spec.checkpoint", "exactly one of claimName", checkpoint={}),
    job(
        "checkpoint in two places",
        "spec.checkpoint",
        "exactly one of claimName and bucket",
        checkpoint={**CLAIM, **IN_BUCKET},
    ),
    job(
        "a bucket of another kind",
        "spec.checkpoint.bucket",
        "should match",
        checkpoint={"bucket": "https://example.com/bucket"},
    ),
    job(
        "a bucket's prefix that leads out of it",
        "spec.checkpoint.bucket",
        "should match",
        checkpoint={"bucket": "s3://checkpoints/team-a/../team-b"},
    ),
    job(
        "a path with a part that is a dot",
        "spec.checkpoint.path",
        "no part of it is a dot",
        checkpoint={**IN_BUCKET, "path": "runs/./a"},
    ),
    job(
        "credentials for a claim",
        "spec.checkpoint.secretName",
        "name a bucket or remove it",
        checkpoint={**CLAIM, "secretName": "keys"},
    ),
    job(
        "a job's token as credentials",
        "spec.checkpoint.secretName",
        "name another one",
        checkpoint={**IN_BUCKET, "secretName": "other-drumline-token"},
    ),
    job(
        "a path that is no key",
        "spec.checkpoint.path",
        "write runs/a",
        checkpoint={**IN_BUCKET, "path": "runs/my model"},
    ),
    job(
        "absolute checkpoint path",
        "spec.checkpoint.path",
        "no leading '/'",
        checkpoint={**CLAIM, "path": "/etc"},
    ),
    job(
        "checkpoint path climbs out",
        "spec.checkpoint.path",
        "no '..'",
        checkpoint={**CLAIM, "path": ".."},
    ),
    job(
        "checkpoint path with a NUL",
        "spec.checkpoint.path",
        "should match",
        checkpoint={**CLAIM, "path": "a\0b"},
    ),
    job(
        "checkpoint for a template",
        "spec.checkpoint",
        "mount a claim by template.volumes",
        trainer=None,
        template={"image": "i"},
        checkpoint=CLAIM,
    ),
    job(
        "checkpoints at no interval",
        "spec.checkpoint.everySteps",
        "greater than or equal to 1",
        checkpoint={**CLAIM, "everySteps": 0},
    ),
    job(
        "keeping no checkpoint",
        "spec.checkpoint.keep",
        "greater than or equal to 1",
        checkpoint={**CLAIM, "keep": 0},
    ),
    job(
        "a price below nothing",
        "spec.maxPricePerGpuHour",
        "should match",
        maxPricePerGpuHour="-1",
    ),
    job("empty topology", "spec.topology", "name a level of the GpuPool", topology={}),
    job(
        "same level twice",
        "spec.topology.preferred",
        "name a narrower one",
        topology={"required": "rack", "preferred": "rack"},
    ),
    job(
        "slices of nothing",
        "spec.topology.slices",
        "at least 1 items",
        topology={"slices": []},
    ),
    job(
        "slices that cut the gang",
        "spec.topology.slices",
        "must be a multiple of nodes of each slice",
        nodes=4,
        topology={"slices": [{"level": "rack", "nodes": 3}]},
    ),
    job(
        "slices that cut each other",
        "spec.topology.slices",
        "lie within each other",
        nodes=12,
        trainer={"globalBatchSize": 12},
        topology={"slices": [{"level": "rack", "nodes": 6}, {"level": "host", "nodes": 4}]},
    ),
    job(
        "two slices of one size",
        "spec.topology.slices",
        "lie within each other",
        nodes=2,
        topology={"slices": [{"level": "rack", "nodes": 2}, {"level": "host", "nodes": 2}]},
    ),
    job(
        "a slice of no level",
        "spec.topology.slices[0].level",
        "Required value",
        topology={"slices": [{"nodes": 1}]},
    ),
    job(
        "one pool and several",
        "spec.gpuPools",
        "keep gpuPools, the preferred one first",
        gpuPool="a",
        gpuPools=["a", "b"],
    ),
    job("surplus of a job of one size", "spec.spot", "add minNodes", nodes=2, spot="Surplus"),
    job(
        "surplus in one pool",
        "spec.spot",
        "gpuPools instead of gpuPool",
        nodes=2,
        minNodes=1,
        trainer={"globalBatchSize": 16},
        checkpoint={"claimName": "saves"},
        gpuPool="a",
        spot="Surplus",
    ),
    job(
        "surplus in the rack of the rest",
        "spec.spot",
        "topology.preferred instead of topology.required",
        nodes=2,
        minNodes=1,
        trainer={"globalBatchSize": 16},
        checkpoint={"claimName": "saves"},
        topology={"required": "rack"},
        spot="Surplus",
    ),
    job("a pool twice", "spec.gpuPools", "keep the first", gpuPools=["a", "b", "a"]),
    job("no pool at all", "spec.gpuPools", "at least 1 items", gpuPools=[]),
    job(
        "a group of one",
        "spec.group.jobs",
        "greater than or equal to 2",
        group={"name": "rl", "jobs": 1},
    ),
    job("a group without a name", "spec.group.name", "Required value", group={"jobs": 2}),
    job(
        "a predecessor twice",
        "spec.after[1]",
        "Duplicate value",
        after=[{"job": "a"}, {"job": "a", "condition": "Finished"}],
    ),
    job(
        "a predecessor that ends in another way",
        "spec.after[0].condition",
        'supported values: "Succeeded", "Finished"',
        after=[{"job": "a", "condition": "Started"}],
    ),
    job("a predecessor without a name", "spec.after[0].job", "Required value", after=[{}]),
    job("a predecessor elsewhere", "spec.after[0].job", "should match", after=[{"job": "b/a"}]),
    job("no predecessor at all", "spec.after", "at least 1 items", after=[]),
    job(
        "a sweep of which nothing runs",
        "spec.sweep.maxParallel",
        "greater than or equal to 1",
        sweep={"name": "lr", "maxParallel": 0},
    ),
    job("a sweep without a name", "spec.sweep.name", "Required value", sweep={"maxParallel": 1}),
    job("a sweep without limit", "spec.sweep.maxParallel", "Required value", sweep={"name": "lr"}),
    job("a user with a space", "spec.user", "should match", user="Ann B"),
    job(
        "GPUs as a resource",
        "spec.resources",
        "asked for with gpusPerNode",
        resources={"nvidia.com/gpu": 8},
    ),
    job(
        "GPU slices as a resource",
        "spec.resources",
        "asked for with gpusPerNode",
        resources={"nvidia.com/mig-1g.5gb": 1},
    ),
    job("unknown resource", "spec.resources", "fix the name", resources={"ram": "8Gi"}),
    job("pods as a resource", "spec.resources", "fix the name", resources={"pods": 1}),
    job("no CPU", "spec.resources", "greater than 0", resources={"cpu": "0"}),
    job("negative memory", "spec.resources", "greater than 0", resources={"memory": -1}),
    job("amount with a unit of bytes", "spec.resources", "match", resources={"memory": "8GB"}),
    job("resource name with a space", "spec.resources", "look like", resources={"a/b c": 1}),
    *(
        own(
            f"a prefix that a key of {name} completes",
            "spec.template.envFrom[0].prefix",
            "choose a longer one",
            envFrom=[{"prefix": prefix, "secretRef": {"name": "keys"}}],
        )
        for prefix, name in (
            ("N", "NNODES"),
            ("LD_", "LD_PRELOAD"),
            ("NVIDIA_VISIBLE_DEVICES", "nothing"),
            ("DRUM", "DRUMLINE_JOB"),
            ("DRUMLINE_A", "B"),
        )
    ),
    own(
        "all keys of a token",
        "spec.template.envFrom[0].secretRef",
        "name another Secret",
        envFrom=[{"prefix": "A_", "secretRef": {"name": "a-drumline-token"}}],
    ),
    own(
        "variables of nothing",
        "spec.template.envFrom[0]",
        "exactly one of secretRef and configMapRef",
        envFrom=[{"prefix": "A_"}],
    ),
    own(
        "a token for a driver",
        "spec.template.volumes[0].csi.nodePublishSecretRef",
        "name another Secret",
        volumes=[
            {
                "name": "a",
                "csi": {"driver": "d", "nodePublishSecretRef": {"name": "a-drumline-token"}},
            }
        ],
    ),
    job(
        "roles beside the bundled trainer",
        "spec.roles",
        "run them as a job of their own",
        roles=[{"name": "launcher"}],
    ),
    role("a role named rank", "spec.roles[0].name", "choose another name", name="rank"),
    role("a role in capitals", "spec.roles[0].name", "should match", name="Launcher"),
    role("a role without pods", "spec.roles[0].nodes", "greater than or equal to 1", nodes=0),
    role(
        "roles of an elastic gang",
        "spec.roles",
        "remove minNodes or roles",
        spec={"minNodes": 1, "nodes": 2, "template": {"launch": "PerGpu", "command": ["a"]}},
    ),
    role(
        "a role that mounts no volume",
        "spec.roles",
        "add the volume there or fix the name",
        volumeMounts=[{"name": "data", "mountPath": "/data"}],
    ),
    role(
        "a role that mounts a volume over the code",
        "spec.roles",
        "mount the volume elsewhere",
        spec={
            "template": {
                "launch": "PerGpu",
                "command": ["a"],
                "volumes": [{"name": "data", "emptyDir": {}}],
                "code": {"digest": f"sha256:{'a' * 64}", "configMaps": ["part"]},
            }
        },
        volumeMounts=[{"name": "data", "mountPath": "/code"}],
    ),
    role(
        "a role with GPUs among its resources",
        "spec.roles",
        "gpusPerNode of the role",
        resources={"nvidia.com/gpu": 1},
    ),
    role(
        "a role that asks for nothing",
        "spec.roles",
        "each more than 0",
        resources={"cpu": "0"},
    ),
    own(
        "a claim of no size",
        "spec.template.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests.storage",
        "must be greater than 0",
        volumes=[{"name": "a", "ephemeral": claim_of_pod(storage="0Gi")}],
    ),
    own(
        "a claim that says no size",
        "spec.template.volumes[0].ephemeral.volumeClaimTemplate.spec.resources",
        "Required value",
        volumes=[{"name": "a", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}],
    ),
    own(
        "a claim and scratch space in one",
        "spec.template.volumes[0]",
        "exactly one of",
        volumes=[{"name": "a", "emptyDir": {}, "ephemeral": claim_of_pod(storage="1Gi")}],
    ),
    own(
        "an init container with the trainer's name",
        "spec.template.initContainers[0].name",
        "choose another name",
        initContainers=[{"name": "trainer", "command": ["true"]}],
    ),
    own(
        "an init container that mounts no volume",
        "spec.template.initContainers",
        "add the volume or fix the name",
        initContainers=[
            {
                "name": "fetch",
                "command": ["true"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
    ),
    own(
        "an init container without a command",
        "spec.template.initContainers[0].command",
        "Required value",
        initContainers=[{"name": "fetch"}],
    ),
    own(
        "a template's sidecar with the trainer's name",
        "spec.template.sidecars[0].name",
        "choose another name",
        sidecars=[{"name": "trainer", "command": ["true"]}],
    ),
    own(
        "a sidecar that would train",
        "spec.template.sidecars[0]",
        "add command, or image",
        sidecars=[{"name": "proxy", "args": ["a"]}],
    ),
    own(
        "a sidecar with an init container's name",
        "spec.template.sidecars",
        "choose another name",
        initContainers=[{"name": "a", "command": ["true"]}],
        sidecars=[{"name": "a", "command": ["true"]}],
    ),
    own(
        "a sidecar that mounts no volume",
        "spec.template.sidecars",
        "add the volume or fix the name",
        sidecars=[
            {
                "name": "proxy",
                "command": ["true"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
    ),
    own(
        "a sidecar of no memory",
        "spec.template.sidecars[0].resources.memory",
        "must be greater than 0",
        sidecars=[{"name": "proxy", "command": ["true"], "resources": {"memory": "0Mi"}}],
    ),
    own(
        "a token in a sidecar",
        "spec.template.sidecars[0].envFrom[0].secretRef",
        "name another Secret",
        sidecars=[
            {
                "name": "proxy",
                "command": ["true"],
                "envFrom": [{"prefix": "A_", "secretRef": {"name": "a-drumline-token"}}],
            }
        ],
    ),
    own(
        "as many sidecars as nobody needs",
        "spec.template.sidecars",
        "must have at most 8 items",
        sidecars=[{"name": f"a{i}", "command": ["true"]} for i in range(9)],
    ),
    node_condition("In without values", "need at least one", operator="In"),
    node_condition("Gt of a word", "one whole number", operator="Gt", values=["new"]),
    node_condition("Exists with values", "remove them", operator="Exists", values=["a"]),
    job("bad node label", "spec.nodeSelector", "look like", nodeSelector={"zone/a/b": "x"}),
    job("bad label value", "spec.nodeSelector.zone", "match", nodeSelector={"zone": "a b"}),
    job(
        "tolerating everything",
        "spec.tolerations[0]",
        "name the taint's key",
        tolerations=[{"operator": "Exists"}],
    ),
    job(
        "tolerating failing nodes",
        "spec.tolerations[0].key",
        "remove this toleration",
        tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}],
    ),
    job(
        "tolerating the control plane",
        "spec.tolerations[0].key",
        "remove this toleration",
        tolerations=[{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
    ),
    job(
        "value of no meaning",
        "spec.tolerations[0].value",
        "use operator Equal",
        tolerations=[{"key": "team", "operator": "Exists", "value": "a"}],
    ),
    job(
        "unknown effect",
        "spec.tolerations[0].effect",
        '"NoSchedule"',
        tolerations=[{"key": "team", "effect": "Never"}],
    ),
    job(
        "restarts below 0",
        "spec.recovery.maxRestarts",
        "greater than or equal to 0",
        recovery={"maxRestarts": -1},
    ),
    job("suspend as text", "spec.suspend", "must be of type boolean", suspend="yes"),
    job(
        "no time to start",
        "spec.startDeadlineSeconds",
        "greater than or equal to 1",
        startDeadlineSeconds=0,
    ),
    job(
        "time to live before the end",
        "spec.ttlSecondsAfterFinished",
        "greater than or equal to 0",
        ttlSecondsAfterFinished=-1,
    ),
    job(
        "deadline as a duration",
        "spec.activeDeadlineSeconds",
        "integer",
        activeDeadlineSeconds="1h",
    ),
    job("manager without a domain", "spec.managedBy", "match", managedBy="kueue"),
    job(
        "priority of the cluster's own pods",
        "spec.priorityClassName",
        "name another",
        priorityClassName="system-cluster-critical",
    ),
    job("priority class in capitals", "spec.priorityClassName", "match", priorityClassName="High"),
]

TEMPLATES = [
    own("no image", "spec.template.image", "Required value", image=None),
    own("image with a line feed", "spec.template.image", "match", image="a\nb"),
    own("a node of one's own", 'unknown field "spec.template.nodeName"', "strict", nodeName="n"),
    own("host network", 'unknown field "spec.template.hostNetwork"', "strict", hostNetwork=True),
    own(
        "privilege",
        'unknown field "spec.template.securityContext"',
        "strict",
        securityContext={"privileged": True},
    ),
    own(
        "another service account",
        'unknown field "spec.template.serviceAccountName"',
        "strict",
        serviceAccountName="admin",
    ),
    own(
        "a volume of the host",
        'unknown field "spec.template.volumes[0].hostPath"',
        "strict",
        volumes=[{"name": "etc", "hostPath": {"path": "/etc"}}],
    ),
    own("an unknown launch", "spec.template.launch", '"PerGpu", "PerPod", "Direct"', launch="None"),
    own(
        "ranks of no command",
        "spec.template.command",
        "add command, such as [python3, train.py]",
        launch="PerGpu",
        args=["train.py"],
    ),
    own(
        "pods of an empty command",
        "spec.template.command",
        "add command",
        launch="PerPod",
        command=[],
    ),
    own(
        "a volume over the agent",
        "spec.template.volumeMounts",
        "mount the volume below /opt or elsewhere",
        launch="PerPod",
        command=["train"],
        volumes=[{"name": "a", "emptyDir": {}}],
        volumeMounts=[{"name": "a", "mountPath": "/opt"}],
    ),
    own("a notice that nobody gives", "spec.template.notice", "add launch", notice={}),
    own(
        "a notice by nothing",
        "spec.template.notice.signal",
        "add file, or choose a signal",
        launch="PerGpu",
        command=["train"],
        notice={"signal": "None"},
    ),
    own(
        "a signal that no program hears",
        "spec.template.notice.signal",
        '"SIGTERM", "SIGINT"',
        launch="PerGpu",
        command=["train"],
        notice={"signal": "SIGKILL"},
    ),
    own(
        "a notice in a file of no folder",
        "spec.template.notice.file",
        "should match",
        launch="PerGpu",
        command=["train"],
        notice={"file": "end-notice.json"},
    ),
    own(
        "patterns that nobody looks for",
        "spec.template.progress",
        "add launch",
        progress={"patterns": ["(?P<step>a)"]},
    ),
    own(
        "patterns without a step",
        "spec.template.progress.patterns",
        "none of them has a group",
        launch="PerGpu",
        command=["train"],
        progress={"patterns": ["(?P<loss>a)"]},
    ),
    own(
        "event files in a folder that depends on where the program runs",
        "spec.template.progress.tensorBoard.folder",
        "should match",
        launch="PerGpu",
        command=["train"],
        progress={"tensorBoard": {"folder": "runs"}},
    ),
    own(
        "hangs that nobody looks for",
        "spec.template.hangDetection",
        "add launch",
        hangDetection="Activity",
    ),
    own(
        "a terminal that an agent would read",
        "spec.template.tty",
        "tty needs launch: Direct",
        launch="PerPod",
        command=["bash"],
        tty=True,
    ),
    own(
        "imports that nobody does",
        "spec.template.preload",
        "add launch",
        command=["python3", "train.py"],
        preload=["torch"],
    ),
    own(
        "imports for a program that is not Python's",
        "spec.template.preload",
        "needs a command that begins with python",
        launch="PerPod",
        command=["torchrun", "train.py"],
        preload=["torch"],
    ),
    own(
        "an import of what is no module",
        "spec.template.preload[0]",
        "should match",
        launch="PerGpu",
        command=["python3", "train.py"],
        preload=["torch; import os"],
    ),
    own(
        "more imports than an agent is told of",
        "spec.template.preload",
        "must have at most 16 items",
        launch="PerGpu",
        command=["python3", "train.py"],
        preload=[f"m{number}" for number in range(17)],
    ),
    own(
        "code that nobody would unpack",
        "spec.template.code",
        "add launch",
        code={"digest": f"sha256:{'0' * 64}", "configMaps": ["code-0"]},
    ),
    own(
        "code of no digest",
        "spec.template.code.digest",
        "should match",
        launch="PerGpu",
        command=["python3", "train.py"],
        code={"digest": f"sha256:{'G' * 64}", "configMaps": ["code-0"]},
    ),
    own(
        "code in more parts than a pod reads",
        "spec.template.code.configMaps",
        "must have at most 5 items",
        launch="PerGpu",
        command=["python3", "train.py"],
        code={
            "digest": f"sha256:{'0' * 64}",
            "configMaps": [f"code-{part}" for part in range(6)],
        },
    ),
    own(
        "a volume over the code",
        "spec.template.volumeMounts",
        "mount the volume elsewhere",
        launch="PerGpu",
        command=["python3", "train.py"],
        code={"digest": f"sha256:{'0' * 64}", "configMaps": ["code-0"]},
        volumes=[{"name": "a", "emptyDir": {}}],
        volumeMounts=[{"name": "a", "mountPath": "/code"}],
    ),
    own("root", "spec.template.runAsUser", "greater than or equal to 1", runAsUser=0),
    own(
        "no time to stop",
        "spec.template.terminationGracePeriodSeconds",
        "greater than or equal to 1",
        terminationGracePeriodSeconds=0,
    ),
    own(
        "annotation of the autoscaler",
        "spec.template.annotations",
        "remove them",
        annotations={"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
    ),
    own(
        "annotation of ours",
        "spec.template.annotations",
        "remove them",
        annotations={"drumline.dev/job": "other"},
    ),
    own("label of ours", "spec.template.labels", "remove them", labels={"drumline.dev/job": "a"}),
    own(
        "label of a controller",
        "spec.template.labels",
        "remove them",
        labels={"app.kubernetes.io/managed-by": "a"},
    ),
    own("label of no form", "spec.template.labels", "look like", labels={"a b": "c"}),
    own(
        "the group of root",
        "spec.template.supplementalGroups[0]",
        "greater than or equal to 1",
        supplementalGroups=[0],
    ),
    own("args without end", "spec.template.args", "at most 256 items", args=["x"] * 257),
    env("name of ours", {"name": "DRUMLINE_JOB"}, field=f"{ENV0}.name", fix=SET_BY_US),
    env("loader", {"name": "LD_PRELOAD"}, field=f"{ENV0}.name", fix="LD_PRELOAD is set by"),
    env("libraries", {"name": "LD_LIBRARY_PATH"}, field=f"{ENV0}.name", fix="the loader"),
    env("GPUs", {"name": "NVIDIA_VISIBLE_DEVICES"}, field=f"{ENV0}.name", fix="GPU runtime"),
    env("torchrun", {"name": "MASTER_ADDR", "value": "h"}, field=f"{ENV0}.name", fix=SET_BY_US),
    env("torchrun's own", {"name": "PET_NNODES"}, field=f"{ENV0}.name", fix=SET_BY_US),
    env("JAX", {"name": "JAX_PROCESS_ID"}, field=f"{ENV0}.name", fix=SET_BY_US),
    env("MPI", {"name": "HYDRA_HOST_FILE"}, field=f"{ENV0}.name", fix=SET_BY_US),
    env("not a name", {"name": "1A"}, field=f"{ENV0}.name", fix="should match"),
    env("twice", {"name": "A"}, {"name": "A"}, field="spec.template.env[1]", fix="Duplicate value"),
    env(
        "two values",
        {"name": "A", "value": "1", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        field=ENV0,
        fix="remove one",
    ),
    env("value from nowhere", {"name": "A", "valueFrom": {}}, field=ENV0, fix="exactly one of"),
    own(
        "volume of two sources",
        "spec.template.volumes[0]",
        "exactly one of",
        volumes=[{"name": "a", "emptyDir": {}, "secret": {"name": "s"}}],
    ),
    own(
        "the token of a job as a volume",
        "spec.template.volumes[0].secret",
        "name another Secret",
        volumes=[{"name": "a", "secret": {"name": "other-1a2b3c4d-drumline-token"}}],
    ),
    env(
        "the token of a job as a variable",
        {
            "name": "A",
            "valueFrom": {"secretKeyRef": {"name": "other-1a2b3c4d-drumline-token", "key": "k"}},
        },
        field=f"{ENV0}.valueFrom.secretKeyRef",
        fix="name another Secret",
    ),
    own(
        "the token of a job as a registry's credentials",
        "spec.template.imagePullSecrets",
        "remove them",
        imagePullSecrets=["other-1a2b3c4d-drumline-token"],
    ),
    own("volume of no source", "spec.template.volumes[0]", "exactly one", volumes=[{"name": "a"}]),
    own(
        "volume of ours",
        "spec.template.volumes[0].name",
        "choose another name",
        volumes=[{"name": "drumline-gang", "emptyDir": {}}],
    ),
    own(
        "volume twice",
        "spec.template.volumes[1]",
        "Duplicate value",
        volumes=[{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}],
    ),
    own(
        "mount of no volume",
        "spec.template.volumeMounts",
        "add the volume or fix the name",
        volumeMounts=[{"name": "data", "mountPath": "/data"}],
    ),
    mount("hosts", "/etc/hosts", "choose another folder"),
    mount("above hosts", "/etc", "choose another folder"),
    mount("the agent's Python", "/opt/drumline/lib", "choose another folder"),
    mount("tokens", "/var/run/secrets/kubernetes.io", "choose another folder"),
    mount("gang", "/var/run/drumline/gang", "choose another folder"),
    mount("gang by its other name", "/run/drumline", "choose another folder"),
    mount("kernel", "/proc/1", "choose another folder"),
    mount("the root folder", "/", "write /data"),
    mount("relative", "data", "write /data"),
    mount("climbs", "/data/../etc/hosts", "write /data"),
    mount("double slash", "//etc/hosts", "write /data"),
    mount("sub path climbs", "/data", "no '..'", subPath="a/../../b"),
    mount("absolute sub path", "/data", "no leading '/'", subPath="/etc"),
]

PLATFORM = [
    queue("no quotas", "spec.quotas", "Required value", quotas=None),
    queue("empty quotas", "spec.quotas", "at least 1 items", quotas=[]),
    queue(
        "quota below 0",
        "spec.quotas[0].nominalGpus",
        "greater than or equal to 0",
        quotas=[{"gpuPool": "gpus", "nominalGpus": -1}],
    ),
    queue(
        "quota without a pool", "spec.quotas[0].gpuPool", "Required", quotas=[{"nominalGpus": 1}]
    ),
    queue(
        "pool twice",
        "spec.quotas[1]",
        "Duplicate value",
        quotas=[{"gpuPool": "gpus", "nominalGpus": 1}, {"gpuPool": "gpus", "nominalGpus": 2}],
    ),
    queue("a rule for spot that is none", "spec.spot", '"Prefer"', spot="Sometimes"),
    queue(
        "a price in words", "spec.maxPricePerGpuHour", "should match", maxPricePerGpuHour="cheap"
    ),
    queue("namespace twice", "spec.namespaces[1]", "Duplicate value", namespaces=["a", "a"]),
    queue(
        "a selector without values",
        "spec.namespaceSelector.matchExpressions[0].values",
        "need at least one",
        namespaceSelector={"matchExpressions": [{"key": "team", "operator": "In"}]},
    ),
    queue(
        "a selector that compares as with nodes",
        "spec.namespaceSelector.matchExpressions[0].operator",
        '"NotIn"',
        namespaceSelector={"matchExpressions": [{"key": "t", "operator": "Gt", "values": ["1"]}]},
    ),
    queue(
        "a selector of a value that means nothing",
        "spec.namespaceSelector.matchExpressions[0].values",
        "remove them",
        namespaceSelector={
            "matchExpressions": [{"key": "t", "operator": "Exists", "values": ["1"]}]
        },
    ),
    queue("no namespace at all", "spec.namespaces", "at least 1 items", namespaces=[]),
    queue(
        "priority of the system", "spec.maxPriority", "less than or equal", maxPriority=2 * 10**9
    ),
    queue("a weight of nothing", "spec.weight", "greater than or equal to 1", weight=0),
    queue(
        "reclaim by whim", "spec.preemption.reclaim", '"FairShare"', preemption={"reclaim": "All"}
    ),
    queue(
        "a user's limit below 0",
        "spec.quotas[0].userLimitGpus",
        "greater than or equal to 0",
        quotas=[{"gpuPool": "gpus", "nominalGpus": 8, "userLimitGpus": -1}],
    ),
    queue(
        "idle within seconds",
        "spec.idle.afterSeconds",
        "greater than or equal to 60",
        idle={"afterSeconds": 59},
    ),
    queue("deletes what is idle", "spec.idle.action", '"Suspend"', idle={"action": "Delete"}),
    queue(
        "a budget of nothing",
        "spec.budget.gpuHours",
        "greater than or equal to 1",
        budget={"gpuHours": 0, "windowDays": 30},
    ),
    queue(
        "a budget of no money",
        "spec.budget.cost",
        "give a cost above 0",
        budget={"cost": "0.00", "windowDays": 30},
    ),
    queue(
        "a budget that limits nothing",
        "spec.budget",
        "give one of gpuHours, cost, userGpuHours",
        budget={"windowDays": 30},
    ),
    queue(
        "more credit than a refill",
        "spec.budget.creditGpuHours",
        "lower it",
        budget={"gpuHours": 1, "refill": "Weekly", "creditGpuHours": 2},
    ),
    queue(
        "credit of hours in a budget of money",
        "spec.budget.creditGpuHours",
        "add gpuHours",
        budget={"cost": "1", "refill": "Weekly", "creditGpuHours": 1},
    ),
    queue(
        "more for each user than for all",
        "spec.budget.userGpuHours",
        "lower it",
        budget={"gpuHours": 1, "windowDays": 1, "userGpuHours": 2},
    ),
    queue(
        "a budget of two times",
        "spec.budget.windowDays",
        "remove one",
        budget={"gpuHours": 1, "windowDays": 1, "refill": "Weekly"},
    ),
    queue(
        "credit on nothing",
        "spec.budget.creditGpuHours",
        "add refill",
        budget={"gpuHours": 1, "windowDays": 1, "creditGpuHours": 1},
    ),
    queue(
        "a budget in a currency",
        "spec.budget.cost",
        "should match",
        budget={"gpuHours": 1, "windowDays": 1, "cost": "20 EUR"},
    ),
    queue(
        "nothing for each user",
        "spec.budget.userGpuHours",
        "greater than or equal to 1",
        budget={"gpuHours": 1, "windowDays": 1, "userGpuHours": 0},
    ),
    queue(
        "a budget that kills",
        "spec.budget.whenSpent",
        '"Expire"',
        budget={"gpuHours": 1, "windowDays": 1, "whenSpent": "Kill"},
    ),
    queue(
        "a budget of parts of hours",
        "spec.budget.gpuHours",
        "must be of type integer",
        budget={"gpuHours": 1.5, "windowDays": 30},
    ),
    queue(
        "a budget of a year",
        "spec.budget.windowDays",
        "less than or equal to 92",
        budget={"gpuHours": 1, "windowDays": 365},
    ),
    queue(
        "a budget for ever",
        "spec.budget.windowDays",
        "windowDays or refill",
        budget={"gpuHours": 1},
    ),
    queue("its own parent", "spec.parent", "name the queue above this one", parent="probe"),
    queue("parent in capitals", "spec.parent", "[a-z0-9]", parent="Team"),
    queue(
        "borrows without a cohort",
        "spec.quotas",
        "name the parent or remove them",
        quotas=[{"gpuPool": "gpus", "nominalGpus": 8, "borrowingLimitGpus": 4}],
    ),
    queue(
        "lends without a cohort",
        "spec.quotas",
        "name the parent or remove them",
        quotas=[{"gpuPool": "gpus", "nominalGpus": 8, "lendingLimitGpus": 4}],
    ),
    queue(
        "lends more than it has",
        "spec.quotas[0].lendingLimitGpus",
        "a queue lends its own",
        parent="department",
        quotas=[{"gpuPool": "gpus", "nominalGpus": 8, "lendingLimitGpus": 9}],
    ),
    queue(
        "borrows less than nothing",
        "spec.quotas[0].borrowingLimitGpus",
        "greater than or equal to 0",
        parent="department",
        quotas=[{"gpuPool": "gpus", "nominalGpus": 8, "borrowingLimitGpus": -1}],
    ),
    queue(
        "unknown rule within the queue",
        "spec.preemption.withinQueue",
        '"LowerPriority"',
        preemption={"withinQueue": "Always"},
    ),
    queue(
        "unknown rule of reclaim",
        "spec.preemption.reclaim",
        '"Never"',
        preemption={"reclaim": "LowerPriority"},
    ),
    queue("a queue that stops in no known way", "spec.stopPolicy", '"Hold"', stopPolicy="Drain"),
    queue(
        "negative minimum runtime",
        "spec.minRuntimeSeconds",
        "greater than or equal to 0",
        minRuntimeSeconds=-1,
    ),
    queue("queue name with a dot", "metadata.name", "no dots", name="team.a"),
    growing(
        "a class of another mode",
        "provisioningClassName",
        "which check-capacity does not; remove it",
        provisioningClassName="queued-provisioning.gke.io",
    ),
    growing(
        "a class that adds no nodes",
        "provisioningClassName",
        "which check-capacity does not; remove it",
        mode="ProvisioningRequest",
        provisioningClassName="check-capacity.autoscaling.x-k8s.io",
    ),
    growing("another mode", "mode", '"Placeholders"', mode="Hope"),
    growing("no limit", "maxNodes", "Required value", maxNodes=None),
    growing("a limit of nothing", "maxNodes", "greater than or equal to 1", maxNodes=0),
    growing("no patience", "timeoutSeconds", "greater than or equal to 1", timeoutSeconds=0),
    growing("no node", "node", "Required value", node=None),
    growing(
        "a node without GPUs",
        "node.allocatable",
        "how many GPUs a new node has",
        node={"allocatable": {"cpu": 8}},
    ),
    growing(
        "GPUs of another kind",
        "node.allocatable",
        "how many GPUs a new node has",
        node={"allocatable": {"amd.com/gpu": 8}},
    ),
    growing("no zone", "zones", "at least 1 items", zones=[]),
    growing("a zone twice", "zones[1]", "Duplicate value", zones=["a", "a"]),
    growing(
        "two words for a zone",
        "node.labels",
        "remove the label",
        zones=["a"],
        node={
            "allocatable": {"nvidia.com/gpu": 8},
            "labels": {"topology.kubernetes.io/zone": "b"},
        },
    ),
    growing(
        "an effect that is none",
        "node.taints[0].effect",
        '"NoSchedule"',
        node={
            "allocatable": {"nvidia.com/gpu": 8},
            "taints": [{"key": "a", "effect": "Never"}],
        },
    ),
    pool("no selector", "spec.nodeSelector", "Required value", nodeSelector=None),
    pool(
        "a level of domains of no size",
        "spec.hardware.domainLevel",
        "domainLevel needs domainGpus",
        hardware={"gpu": "GB200", "domainLevel": "clique"},
    ),
    pool(
        "a level of racks of no size",
        "spec.hardware.rackLevel",
        "rackLevel needs rackGpus",
        hardware={"gpu": "GB200", "rackLevel": "rack"},
    ),
    pool(
        "oversubscription of no racks",
        "spec.hardware.oversubscription",
        "oversubscription needs rackGpus",
        hardware={"gpu": "GB200", "oversubscription": 2},
    ),
    pool(
        "racks that are smaller than domains",
        "spec.hardware.rackGpus",
        "rackGpus must be at least domainGpus",
        hardware={"gpu": "GB200", "rackGpus": 8, "domainGpus": 72},
    ),
    pool(
        "GPUs that the planner does not know",
        "spec.hardware.gpu",
        '"GB200"',
        hardware={"gpu": "GB2000"},
    ),
    pool(
        "empty selector",
        "spec.nodeSelector",
        "at least 1 properties",
        nodeSelector={"nvidia.com/gpu.present": None},
    ),
    pool(
        "a partition larger than a GPU",
        "spec.partitions.resources",
        "lower its parts",
        partitions={"partsPerGpu": 7, "resources": [{"resource": "a.com/b", "parts": 8}]},
    ),
    pool(
        "a partition without a domain",
        "spec.partitions.resources",
        "write nvidia.com/mig-1g.10gb",
        partitions={"partsPerGpu": 7, "resources": [{"resource": "mig-1g.10gb", "parts": 1}]},
    ),
    pool(
        "whole GPUs as a partition",
        "spec.partitions",
        "remove it from the partitions",
        partitions={"partsPerGpu": 7, "resources": [{"resource": "nvidia.com/gpu", "parts": 7}]},
    ),
    pool(
        "devices of nodes to come",
        "spec.devices",
        "remove partitions and autoscaling",
        devices={"driver": "gpu.nvidia.com", "deviceClassName": "gpu.nvidia.com"},
        partitions={"partsPerGpu": 7, "resources": [{"resource": "a.com/b", "parts": 1}]},
    ),
    pool(
        "partitions of nodes to come",
        "spec.autoscaling",
        "remove it, or the partitions",
        partitions={"partsPerGpu": 7, "resources": [{"resource": "a.com/b", "parts": 1}]},
        autoscaling={
            "mode": "Placeholders",
            "maxNodes": 1,
            "node": {"allocatable": {"nvidia.com/gpu": 8}},
        },
    ),
    pool(
        "a DeviceClass in capitals",
        "spec.devices.deviceClassName",
        "should match",
        devices={"driver": "gpu.nvidia.com", "deviceClassName": "GPU"},
    ),
    pool("GPU without a domain", "spec.gpuResource", "write nvidia.com/gpu", gpuResource="gpu"),
    pool("resource of the kubelet", "spec.gpuResource", "write", gpuResource="kubernetes.io/gpu"),
    pool(
        "level twice",
        "spec.topologyLevels[1]",
        "Duplicate value",
        topologyLevels=[{"name": "rack", "nodeLabel": "a"}, {"name": "rack", "nodeLabel": "b"}],
    ),
    pool(
        "label twice",
        "spec.topologyLevels",
        "give each its own",
        topologyLevels=[{"name": "rack", "nodeLabel": "a"}, {"name": "block", "nodeLabel": "a"}],
    ),
    pool(
        "level without a label",
        "spec.topologyLevels[0].nodeLabel",
        "Required value",
        topologyLevels=[{"name": "rack"}],
    ),
    pool(
        "too many levels",
        "spec.topologyLevels",
        "at most 8 items",
        topologyLevels=[{"name": f"l{i}", "nodeLabel": f"l{i}"} for i in range(9)],
    ),
    pool(
        "a price with a currency",
        "spec.capacity.pricePerGpuHour",
        "should match",
        capacity={"pricePerGpuHour": "2.50 USD"},
    ),
    pool(
        "a price as a number",
        "spec.capacity.pricePerGpuHour",
        "must be of type string",
        capacity={"pricePerGpuHour": 2.5},
    ),
    pool(
        "a capacity type that the nodes do not have",
        "spec.capacity.type",
        "make both say the same",
        nodeSelector={"karpenter.sh/capacity-type": "spot"},
        capacity={"type": "OnDemand"},
    ),
    pool("pool name too long", "metadata.name", "at most 63", name=LONG),
    profile(
        "a mount of no volume",
        "volumeMounts",
        "add the volume or fix the name",
        volumeMounts=[{"name": "ib", "mountPath": "/dev/infiniband"}],
    ),
    profile(
        "a sidecar's mount of no volume",
        "sidecars",
        "add the volume or fix the name",
        sidecars=[
            {
                "name": "rxdm",
                "image": "rxdm:1",
                "volumeMounts": [{"name": "sys", "mountPath": "/hostsysfs"}],
            }
        ],
    ),
    profile(
        "a sidecar with the trainer's name",
        "sidecars[0].name",
        "choose another name",
        sidecars=[{"name": "trainer", "image": "rxdm:1"}],
    ),
    profile("privilege by another name", "capabilities", "as a sidecar", capabilities=["ALL"]),
    profile("CAP_ before a capability", "capabilities[0]", "should match", capabilities=["ipc"]),
    profile("our labels", "labels", "remove them", labels={"drumline.dev/job": "a"}),
    profile(
        "a variable of the launcher",
        "env[0].name",
        "set by Drumline",
        env=[{"name": "MASTER_ADDR", "value": "here"}],
    ),
    profile(
        "a path that climbs",
        "volumes[0].hostPath.path",
        "must be absolute",
        volumes=[{"name": "a", "hostPath": {"path": "/dev/../etc"}}],
    ),
    profile("a volume without a source", "volumes[0]", "exactly one", volumes=[{"name": "a"}]),
]

TABLE = [*JOBS, *TEMPLATES, *PLATFORM]


@pytest.fixture(scope="module", params=["policy", "alone"])
def server(request: pytest.FixtureRequest, as_installed: Server, alone: Server) -> Server:
    """The rules over the whole spec, once in the policy and once in the CRD."""
    return {"policy": as_installed, "alone": alone}[request.param]


@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.why.replace(" ", "-"))
def test_a_bad_spec_is_refused_with_its_field_and_the_fix(server: Server, bad: Bad) -> None:
    answer = server.create(bad.body, dry_run=True)
    assert answer.code in {400, 422}, answer
    assert bad.field in answer.message
    assert bad.fix in answer.message


def test_the_table_is_long_enough_and_its_cases_are_distinct() -> None:
    assert len({bad.why for bad in TABLE}) == len(TABLE) >= 60


def rules(node: Any) -> Iterator[dict[str, str]]:
    """Every CEL rule below this part of a CRD that is checked on creation."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    if not isinstance(node, dict):
        return
    for rule in node.get("x-kubernetes-validations", []):
        if "oldSelf" not in rule["rule"]:
            yield rule
    for below in node.values():
        yield from rules(below)


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.kind)
def test_every_rule_refuses_something_in_the_table(definition: Definition) -> None:
    said = [bad.fix for bad in TABLE]
    silent = [
        rule["message"]
        for rule in rules(definition.manifest())
        if "messageExpression" not in rule and not any(fix in rule["message"] for fix in said)
    ]
    assert silent == []
