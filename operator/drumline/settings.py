"""The operator's settings: the only reader of the environment in the control plane."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from drumline_api.load import ApiError, parse
from drumline_api.policy import SchedulingPolicy


class SettingsError(ValueError):
    """A variable with an invalid value; the message names it and says what is valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one operator process, from the environment of its Deployment."""

    namespace: str = "drumline-system"
    """DRUMLINE_NAMESPACE: where the operator runs and keeps its Lease."""
    watch_namespaces: tuple[str, ...] = ()
    """DRUMLINE_WATCH_NAMESPACES: the namespaces whose jobs are run, with commas; empty: all."""
    installation: str = ""
    """DRUMLINE_INSTALLATION: whose pools and queues these are, by their label
    drumline.dev/installation; empty: those without it."""
    guarded_pools: tuple[str, ...] = ()
    """DRUMLINE_GUARDED_POOLS: the GpuPools whose nodes are tainted while gangs are promised places
    there, with commas."""
    evict_foreign_pods: bool = False
    """DRUMLINE_EVICT_FOREIGN_PODS: whether it may evict pods, for queues that give back what
    their pods borrow."""
    identity: str = "drumline"
    """DRUMLINE_POD_NAME: holder identity in the Lease; the host's name by default."""
    trainer_image: str = "drumline/trainer:dev"
    """DRUMLINE_TRAINER_IMAGE: for jobs of the bundled trainer without trainer.image."""
    operator_image: str = "drumline/operator:dev"
    """DRUMLINE_OPERATOR_IMAGE: also the image of the join container of gangs with a template."""
    agent_image: str = ""
    """DRUMLINE_AGENT_IMAGE: the image whose agent is brought into pods of a template with a launch;
    empty: the operator's."""
    signing_key_file: Path = Path("/var/run/drumline/signing/key")
    """DRUMLINE_SIGNING_KEY_FILE: the key from which job tokens are derived; a file `previous`
    beside it is the key before it, while keys are changed."""
    signing_key_object: str = ""
    """DRUMLINE_SIGNING_KEY_OBJECT: the Secret that is created where that file is missing."""
    priority_class: str = "drumline-training-pods"
    """DRUMLINE_PRIORITY_CLASS: of every training pod; the priority of a job is in its spec."""
    training_user: int | None = 65532
    """DRUMLINE_TRAINING_USER: of training pods whose template names none; `assigned`: whom the
    namespace's constraint assigns (OpenShift)."""
    lease_seconds: int = 15
    """DRUMLINE_LEASE_SECONDS: how long a silent leader keeps its Lease; 13 or more."""
    progress_seconds: float = 60.0
    """DRUMLINE_PROGRESS_SECONDS: at least this long between two refreshes of a job's figures."""
    preemption_seconds: float = 300.0
    """DRUMLINE_PREEMPTION_SECONDS: how long a preempted job may take to save."""
    scheduling: SchedulingPolicy = field(default_factory=SchedulingPolicy)
    """DRUMLINE_SCHEDULING: JSON with the scheduling policy: waiting, order, reservations, ..."""
    workload_kinds: tuple[str, ...] = ()
    """DRUMLINE_WORKLOAD_KINDS: kinds that wait for quota beside Jobs and JobSets, with commas."""
    admit_workloads: bool = False
    """DRUMLINE_ADMIT_WORKLOADS: whether workloads other than TrainingJobs wait for quota until
    the operator admits them: true or false."""
    capture_file: Path = Path("/tmp/drumline-capture.json")  # noqa: S108 - the pod's own emptyDir
    """DRUMLINE_CAPTURE_FILE: where a scheduling cycle is written when SIGUSR1 asks for one."""
    dynamic_resources: bool = False
    """DRUMLINE_DYNAMIC_RESOURCES: whether devices of Dynamic Resource Allocation are watched, and
    allocated in pools that say so: true or false."""
    log_level: str = "info"
    """DRUMLINE_LOG_LEVEL: debug, info, warning or error."""
    log_format: str = "json"
    """DRUMLINE_LOG_FORMAT: json or console."""
    http_host: str = "0.0.0.0"  # noqa: S104 - probes and metrics come from outside the pod
    """DRUMLINE_HTTP_HOST: address of /healthz, /readyz and /metrics."""
    http_port: int = 8080
    """DRUMLINE_HTTP_PORT."""
    job_metrics: int = 0
    """DRUMLINE_JOB_METRICS: of how many jobs /metrics has series of their own."""
    autoscaling_modes: tuple[str, ...] = ()
    """DRUMLINE_AUTOSCALING_MODES: which of ProvisioningRequest and CapacityBuffer GpuPools may have
    beside Placeholders, with commas: each needs rights."""
    read_karpenter: bool = False
    """DRUMLINE_READ_KARPENTER: whether jobs that wait for nodes say what NodeClaims and NodePools
    say: true or false."""
    archive: str = ""
    """DRUMLINE_ARCHIVE: URL of the archive that the archiver writes; the operator has none."""
    archive_days: int = 365
    """DRUMLINE_ARCHIVE_DAYS: documents of jobs that ended earlier are deleted."""
    archive_logs: bool = False
    """DRUMLINE_ARCHIVE_LOGS: whether the last lines of the pods are kept: true or false."""
    notifications: Path | None = None
    """DRUMLINE_NOTIFICATIONS: JSON file with channels and routes; for the notifier alone."""
    notifications_secrets: Path = Path("/var/run/drumline/notifications")
    """DRUMLINE_NOTIFICATIONS_SECRETS: the folder with SECRET/KEY for its channels."""
    notifications_record: str = "drumline-notifier"
    """DRUMLINE_NOTIFICATIONS_RECORD: the ConfigMap in which it keeps what was sent."""
    api_server: str = "https://kubernetes.default.svc"
    """DRUMLINE_API_SERVER: where the page sends its callers' tokens; for the page alone. Unset: the
    Service's address in the environment of the pod, which needs no DNS."""
    api_server_ca: Path = Path("/var/run/drumline/api-server/ca.crt")
    """DRUMLINE_API_SERVER_CA: what it trusts there."""
    trainer_pod: dict[str, Any] = field(default_factory=dict[str, Any])
    """DRUMLINE_TRAINER_POD: JSON with volumes, volumeMounts, env, annotations, tolerations and
    imagePullSecrets added to pods of the bundled trainer."""
    metrics_from: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """DRUMLINE_METRICS_FROM: JSON list of NetworkPolicyPeers that may read training metrics."""


TRAINER_POD_KEYS = (
    "volumes",
    "volumeMounts",
    "env",
    "annotations",
    "tolerations",
    "imagePullSecrets",
)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
AUTOSCALING_MODES = ("ProvisioningRequest", "CapacityBuffer")
WORKLOAD_KINDS = ("RayCluster", "RayJob", "PyTorchJob", "MPIJob")
LOG_LEVELS = ("debug", "info", "warning", "error")


def _in_cluster(environment: Mapping[str, str]) -> str:
    """Return the API server's address by the Service's IP; empty outside of a pod."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    if not host:
        return ""
    port = environment.get("KUBERNETES_SERVICE_PORT") or "443"
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Read DRUMLINE_* variables; absent and empty ones keep their defaults.

    Raises:
        SettingsError: a value is invalid.
    """
    read = _Reader(environment)
    defaults = Settings()
    log_level = read.choice("LOG_LEVEL", defaults.log_level, LOG_LEVELS)
    return Settings(
        namespace=read.text("NAMESPACE", defaults.namespace),
        watch_namespaces=read.names("WATCH_NAMESPACES", of="namespace"),
        installation=read.name("INSTALLATION"),
        guarded_pools=read.names("GUARDED_POOLS", of="GpuPool"),
        evict_foreign_pods=read.choice("EVICT_FOREIGN_PODS", "false", ("true", "false")) == "true",
        identity=read.text("POD_NAME", socket.gethostname()),
        trainer_image=read.text("TRAINER_IMAGE", defaults.trainer_image),
        operator_image=read.text("OPERATOR_IMAGE", defaults.operator_image),
        agent_image=read.text("AGENT_IMAGE", defaults.agent_image),
        signing_key_file=Path(read.text("SIGNING_KEY_FILE", str(defaults.signing_key_file))),
        signing_key_object=read.text("SIGNING_KEY_OBJECT", defaults.signing_key_object),
        priority_class=read.text("PRIORITY_CLASS", defaults.priority_class),
        training_user=read.user(defaults.training_user),
        lease_seconds=int(read.number("LEASE_SECONDS", defaults.lease_seconds, low=13)),
        progress_seconds=read.number("PROGRESS_SECONDS", defaults.progress_seconds, low=1.0),
        preemption_seconds=read.number("PREEMPTION_SECONDS", defaults.preemption_seconds, low=1.0),
        scheduling=read.scheduling(),
        workload_kinds=read.listed("WORKLOAD_KINDS", WORKLOAD_KINDS),
        admit_workloads=read.choice("ADMIT_WORKLOADS", "false", ("true", "false")) == "true",
        capture_file=Path(read.text("CAPTURE_FILE", str(defaults.capture_file))),
        dynamic_resources=read.choice("DYNAMIC_RESOURCES", "false", ("true", "false")) == "true",
        log_level=log_level,
        log_format=read.choice("LOG_FORMAT", defaults.log_format, ("json", "console")),
        http_host=read.text("HTTP_HOST", defaults.http_host),
        http_port=int(read.number("HTTP_PORT", defaults.http_port, low=0)),
        job_metrics=int(read.number("JOB_METRICS", defaults.job_metrics, low=0)),
        autoscaling_modes=read.listed("AUTOSCALING_MODES", AUTOSCALING_MODES),
        read_karpenter=read.choice("READ_KARPENTER", "false", ("true", "false")) == "true",
        archive=read.text("ARCHIVE", defaults.archive),
        archive_days=int(read.number("ARCHIVE_DAYS", defaults.archive_days, low=1)),
        archive_logs=read.choice("ARCHIVE_LOGS", "false", ("true", "false")) == "true",
        notifications=read.path("NOTIFICATIONS"),
        notifications_secrets=read.path("NOTIFICATIONS_SECRETS") or defaults.notifications_secrets,
        notifications_record=read.text("NOTIFICATIONS_RECORD", defaults.notifications_record),
        api_server=read.text("API_SERVER", _in_cluster(environment) or defaults.api_server).rstrip(
            "/"
        ),
        api_server_ca=read.path("API_SERVER_CA") or defaults.api_server_ca,
        trainer_pod=read.trainer_pod(),
        metrics_from=read.metrics_from(),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    environment: Mapping[str, str]

    def text(self, name: str, default: str) -> str:
        return self.environment.get(f"DRUMLINE_{name}") or default

    def path(self, name: str) -> Path | None:
        text = self.text(name, "")
        return Path(text) if text else None

    def name(self, name: str) -> str:
        value = self.text(name, "")
        if value and not _NAME.fullmatch(value):
            raise SettingsError(f"DRUMLINE_{name}={value!r}: must be a valid namespace name")
        return value

    def names(self, name: str, *, of: str) -> tuple[str, ...]:
        values = tuple(filter(None, self.text(name, "").split(",")))
        for value in values:
            if not _NAME.fullmatch(value):
                raise SettingsError(f"DRUMLINE_{name}: {value!r} is not a valid {of} name")
        return tuple(dict.fromkeys(values))

    def listed(self, name: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
        values = tuple(filter(None, self.text(name, "").split(",")))
        for value in values:
            if value not in allowed:
                raise SettingsError(
                    f"DRUMLINE_{name}: {value!r} must be one of {', '.join(allowed)}"
                )
        return tuple(dict.fromkeys(values))

    def number(self, name: str, default: float, *, low: float) -> float:
        raw = self.text(name, str(default))
        try:
            value = float(raw)
        except ValueError:
            raise SettingsError(f"DRUMLINE_{name}={raw!r}: must be a number") from None
        if not low <= value < float("inf"):
            raise SettingsError(f"DRUMLINE_{name}={raw}: must be at least {low:g}")
        return value

    def user(self, default: int | None) -> int | None:
        raw = self.text("TRAINING_USER", str(default))
        if raw == "assigned":
            return None
        if not raw.isdecimal() or not 1 <= int(raw) < 1 << 31:
            raise SettingsError(
                f"DRUMLINE_TRAINING_USER={raw!r}: must be a user ID of at least 1, or 'assigned'"
            )
        return int(raw)

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self.text(name, default).lower()
        if value not in allowed:
            raise SettingsError(f"DRUMLINE_{name}={value!r}: must be one of {', '.join(allowed)}")
        return value

    def scheduling(self) -> SchedulingPolicy:
        try:
            return parse(SchedulingPolicy, self._object("SCHEDULING"))
        except ApiError as error:
            raise SettingsError(f"DRUMLINE_SCHEDULING: {error}") from None

    def trainer_pod(self) -> dict[str, Any]:
        additions = self._object("TRAINER_POD")
        unknown = sorted(set(additions) - set(TRAINER_POD_KEYS))
        if unknown:
            known = ", ".join(TRAINER_POD_KEYS)
            raise SettingsError(f"DRUMLINE_TRAINER_POD: unknown key {unknown[0]!r}; known: {known}")
        return additions

    def metrics_from(self) -> list[dict[str, Any]]:
        parsed = self._json("METRICS_FROM", "[]")
        if not isinstance(parsed, list):
            raise SettingsError("DRUMLINE_METRICS_FROM: must be a JSON list")
        peers = cast("list[object]", parsed)
        if not all(isinstance(peer, dict) and peer != {} for peer in peers):
            raise SettingsError(
                "DRUMLINE_METRICS_FROM: every peer must be an object with a selector"
            )
        return cast("list[dict[str, Any]]", peers)

    def _object(self, name: str) -> dict[str, Any]:
        parsed = self._json(name, "{}")
        if not isinstance(parsed, dict):
            raise SettingsError(f"DRUMLINE_{name}: must be a JSON object")
        return cast("dict[str, Any]", parsed)

    def _json(self, name: str, default: str) -> object:
        try:
            return json.loads(self.text(name, default))
        except ValueError as error:
            raise SettingsError(f"DRUMLINE_{name}: not JSON: {error}") from None
