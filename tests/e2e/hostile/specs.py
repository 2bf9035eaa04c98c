"""Malicious TrainingJobs: each is refused with a sentence that names the field, or told, or runs.

Whoever refuses (the CRD, a policy of the chart, the operator), the sentence is what counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.kube import Json
from tools.cluster.images import TRAINER_IMAGE

QUEUE = "hostile"
PRIVATE_QUEUE = "private"
"""For the neighbour's namespace alone."""
OTHER_POOL = "others"
BIDI, ESCAPE, NBSP = "\N{RIGHT-TO-LEFT OVERRIDE}", "\x1b[2J", "\N{NO-BREAK SPACE}"
INT64 = (1 << 63) - 1
TOKEN = "other-1a2b3c4d-drumline-token"  # noqa: S105 - a name, not a secret
PLACEHOLDER = "@"
SLEEP: Json = {
    "image": TRAINER_IMAGE,
    "command": ["sleep", "3600"],
    "terminationGracePeriodSeconds": 1,
}
ONE_START: Json = {"maxFailedStarts": 1}


@dataclass(frozen=True, slots=True)
class Refused:
    """At the request, with these words."""

    said: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Waits:
    """Holds nothing, and status says why."""

    reason: str
    said: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fails:
    """Ends, and status says why."""

    reason: str
    said: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs as any other job."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """Another controller's: it gets no status and no pods."""


Expectation = Refused | Waits | Fails | Runs | Ignored


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One object of the user.

    Attributes:
        text: JSON in the place of `PLACEHOLDER`, which no encoder would write.
    """

    name: str
    spec: Json
    expects: Expectation
    job_name: str = ""
    metadata: Json = field(default_factory=dict[str, Any])
    text: bytes | None = None

    def body(self, namespace: str) -> bytes:
        """The request."""
        metadata = {"name": self.job_name or self.name, "namespace": namespace, **self.metadata}
        kind = {"apiVersion": "drumline.dev/v1alpha1", "kind": "TrainingJob"}
        manifest = {**kind, "metadata": metadata, "spec": {"queue": QUEUE, **self.spec}}
        whole = json.dumps(manifest).encode()
        quoted = json.dumps(PLACEHOLDER).encode()
        return whole if self.text is None else whole.replace(quoted, self.text)


def template(**more: Any) -> Json:
    """A spec whose template sleeps, with this in it."""
    return {"template": {**SLEEP, **more}}


def refused(name: str, spec: Json, *said: str, **more: Any) -> Spec:
    return Spec(name=name, spec=spec, expects=Refused(said), **more)


def waits(name: str, reason: str, spec: Json, *said: str, **more: Any) -> Spec:
    return Spec(name=name, spec=spec, expects=Waits(reason, said), **more)


def overrides(name: str, value: Any, *said: str, text: bytes | None = None) -> Spec:
    """Overrides that only the operator can judge."""
    trainer = {"globalBatchSize": 8, "parallelism": {"pipeline": 2}, "overrides": value}
    spec = {"nodes": 2, "gpusPerNode": 4, "trainer": trainer}
    return waits(name, "InvalidConfig", spec, *said, text=text)


def nested(depth: int) -> bytes:
    """An object with a list of lists of lists."""
    return b'{"a":' + b"[" * depth + b"1" + b"]" * depth + b"}"


def volume(name: str, source: Json, *said: str) -> Spec:
    return refused(name, template(volumes=[{"name": "v", **source}]), *said)


def variable(name: str, env: list[Json], *said: str) -> Spec:
    return refused(name, template(env=env), *said)


NUMBERS = [
    refused("nodes-int64", {"nodes": INT64, "trainer": {}}, "spec.nodes", "10000"),
    refused("nodes-googol", {"nodes": PLACEHOLDER, "trainer": {}}, "nodes", text=b"1" + b"0" * 100),
    refused("deadline", {"trainer": {}, "activeDeadlineSeconds": INT64}, "activeDeadlineSeconds"),
    refused(
        "grace",
        template(terminationGracePeriodSeconds=INT64),
        "spec.template.terminationGracePeriodSeconds",
        "3600",
    ),
    refused("no-cpu", {**template(), "resources": {"cpu": "-1"}}, "spec.resources"),
    waits(
        "memory-int64",
        "ExceedsCluster",
        {**template(), "resources": {"memory": INT64}},
        "memory",
    ),
    refused(
        "memory-exabytes",
        {**template(), "resources": {"memory": "9223372036854775807E"}},
        "spec.resources.memory",
    ),
    waits(
        "ten-thousand",
        "ExceedsQuota",
        {"nodes": 10_000, "trainer": {"globalBatchSize": 1_000_000}},
        QUEUE,
    ),
    waits(
        "elastic-thousands",
        "ExceedsQuota",
        {
            "nodes": 10_000,
            "minNodes": 500,
            "checkpoint": {"claimName": "checkpoints"},
            "trainer": {"globalBatchSize": 1_000_000},
        },
        QUEUE,
    ),
]
OVERRIDES = [
    overrides(
        "batch-hangs",
        {"global_batch_size": 9_000_000_000_000_000},
        "global_batch_size: must be at most",
    ),
    overrides("batch-raises", {"global_batch_size": 1}, "global_batch_size: 1 does not split"),
    overrides("nested-900", PLACEHOLDER, "nested more than 16 levels deep", text=nested(900)),
    overrides("nested-5000", PLACEHOLDER, "nested more than 16 levels deep", text=nested(5000)),
    overrides("wide", {"a": [[]] * 8000}, "trainer.overrides: 24007 bytes as JSON is over 16384"),
    overrides("wider", PLACEHOLDER, "is over 16384", text=b'{"a":"' + b"x" * 1_000_000 + b'"}'),
    overrides("escapes", {f"{ESCAPE}{BIDI}": 1}, "unknown field"),
    refused(
        "digits",
        {"trainer": {"overrides": PLACEHOLDER}},
        text=b'{"log_every_steps":' + b"9" * 5000 + b"}",
    ),
    refused(
        "many-keys",
        {"trainer": {"overrides": {f"key{index}": 1 for index in range(33)}}},
        "overrides",
        "at most 32",
    ),
]
NAMES = [
    refused("bidi-name", template(), "metadata.name", job_name=f"good{BIDI}live"),
    refused("long-name", template(), "metadata.name", "50", job_name="a" * 63),
    refused("escaped-image", template(image=f"{ESCAPE}x"), "spec.template.image"),
    Spec(name="bidi-user", spec={**template(), "user": f"ann{BIDI}{NBSP}eel"}, expects=Runs()),
    refused(
        "system-class",
        {**template(), "priorityClassName": "system-cluster-critical"},
        "priorityClassName",
        "choose another",
    ),
    waits("no-class", "PriorityClassNotFound", {**template(), "priorityClassName": "x"}, "x"),
    Spec(name="foreign-manager", spec={**template(), "managedBy": "x.dev/y"}, expects=Ignored()),
]
PLACES = [
    waits(
        "private-queue", "NamespaceNotAllowed", {**template(), "queue": PRIVATE_QUEUE}, "private"
    ),
    waits("no-queue", "QueueNotFound", {**template(), "queue": "nobodys"}, "nobodys"),
    waits("foreign-pool", "NoQuotaInPool", {**template(), "gpuPool": OTHER_POOL}, OTHER_POOL),
    waits("foreign-nodes", "NodesUnavailable", {**template(), "nodeSelector": {"team": "other"}}),
    waits("no-level", "TopologyLevelUnknown", {**template(), "topology": {"required": "x"}}, "x"),
    waits("half-group", "WaitingForGroup", {**template(), "group": {"name": "g", "jobs": 256}}),
    refused(
        "any-taint",
        {**template(), "tolerations": [{"operator": "Exists"}]},
        "spec.tolerations[0]",
        "set the taint's key",
    ),
]
TEMPLATES = [
    volume("token-volume", {"secret": {"name": TOKEN}}, "secret", "name another Secret"),
    volume("host-path", {"hostPath": {"path": "/"}}, "spec.template.volumes[0]", "exactly one of"),
    volume(
        "projected-token",
        {"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
        "spec.template.volumes[0]",
        "exactly one of",
    ),
    refused("token-pull", template(imagePullSecrets=[TOKEN]), "imagePullSecrets", "remove them"),
    refused(
        "mount-over-token",
        template(
            volumes=[{"name": "v", "emptyDir": {}}],
            volumeMounts=[{"name": "v", "mountPath": "/var/run/drumline/token"}],
        ),
        "mountPath",
        "choose another folder",
    ),
    variable(
        "token-variable",
        [{"name": "A", "valueFrom": {"secretKeyRef": {"name": TOKEN, "key": "token"}}}],
        "secretKeyRef",
        "name another Secret",
    ),
    variable("our-variable", [{"name": "DRUMLINE_JOB_UID", "value": "x"}], "DRUMLINE_JOB_UID"),
    variable("loader", [{"name": "LD_PRELOAD", "value": "/x.so"}], "LD_PRELOAD"),
    variable("twice", [{"name": "A"}, {"name": "A"}], "spec.template.env[1]"),
    refused("two-kinds", {**template(), "trainer": {}}, "exactly one of trainer and template"),
    refused(
        "climbing",
        {"trainer": {}, "checkpoint": {"claimName": "checkpoints", "path": "../../etc"}},
        "spec.checkpoint.path",
        "without '..'",
    ),
    Spec(
        name="signing-key",
        spec={
            **template(
                volumes=[{"name": "v", "secret": {"name": "drumline-signing-key"}}],
                volumeMounts=[{"name": "v", "mountPath": "/v"}],
            ),
            "recovery": ONE_START,
        },
        expects=Fails("StartFailed", ('secret "drumline-signing-key" not found',)),
    ),
    Spec(
        name="no-image",
        spec={**template(image="A" * 500), "recovery": ONE_START},
        expects=Fails("StartFailed", ("InvalidImageName",)),
    ),
]
SPECS = [*NUMBERS, *OVERRIDES, *NAMES, *PLACES, *TEMPLATES]
