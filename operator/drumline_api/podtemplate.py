"""Define the pod template of a TrainingJob: an allow-list, not a PodSpec.

Some fields are left out on purpose. nodeName, schedulerName, host namespaces, privilege and service
accounts belong to the operator or to the cluster's administrator (`podprofile`). The CEL rules
below reject values of allowed fields that would bypass the allow-list: the variables and mount
points with which the operator connects the gang.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from drumline_api.base import (
    DISTINCT,
    TOKEN_SECRET_SUFFIX,
    ApiModel,
    LabelKey,
    LabelValue,
    Name,
    Quantity,
    Rule,
    keyed_by,
)
from drumline_api.code import CodeSource
from drumline_api.initcontainer import InitContainer
from drumline_api.sidecar import Sidecar
from drumline_api.supervision import EndNoticeDelivery, ProgressSource
from drumline_api.variables import EnvFromSource, EnvVar
from drumline_api.volumes import Volume, VolumeMount
from drumline_contract import (
    CODE_FOLDER,
    INTERPRETER_PATTERN,
    MAX_MODULE_CHARS,
    MAX_PRELOADS,
    MODULE_PATTERN,
)

# Families instead of single keys: new annotations of a known controller are covered at once.
PLATFORM_KEYS: Final = (
    "^([^/]*[.-])?(kubernetes[.]io|k8s[.]io|cncf[.]io|nri[.]io|noderesource[.]dev|drumline[.]dev"
    "|karpenter[.]sh|volcano[.]sh|cilium[.]io|projectcalico[.]org|openshift[.]io|amazonaws[.]com"
    "|gke[.]io|workload[.]identity|hashicorp[.]com|istio[.]io|linkerd[.]io|kuma[.]io|dapr[.]io"
    "|opentelemetry[.]io|datadoghq[.]com|banzaicloud[.](io|com)|kyverno[.]io|antrea[.]io"
    "|spidernet[.]io|google[.]com|azure[.]com|aliyun[.]com|alibabacloud[.]com|tencent[.]com"
    "|kai[.]scheduler|run[.]ai|runai|yunikorn[.]apache[.]org|koordinator[.]sh)/"
    "|^(k8s|io[.]kubernetes|io[.]containerd|io[.]katacontainers)[.]|^aadpodidbinding$"
)
"""Labels and annotations that schedulers, network plugins, container runtimes, clouds and injectors
of containers act on, by the families of their names. The operator creates the pods, so a policy
that asks who creates a pod would not see the user."""

# 16 entries bound the rules that look at each resource name.
ResourceList = Annotated[dict[LabelKey, Quantity], Field(max_length=16)]
"""Requests and limits of one pod besides its GPUs: cpu, memory, ephemeral-storage, RDMA devices."""


class Toleration(ApiModel):
    """A taint that the job's pods tolerate, as in a pod."""

    key: LabelKey | None = None
    """Key of the taint. Taints of node state (node.kubernetes.io/...) cannot be tolerated."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """Equal compares `value`. Exists accepts any value. Default: Equal."""
    value: LabelValue | None = None
    """Value of the taint, with operator Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. Unset: all effects."""

    rules: ClassVar[tuple[Rule, ...]] = (
        # A toleration without a key tolerates all taints, which includes cordons.
        Rule(
            rule="has(self.key)",
            message="key is required, because a toleration of every taint would allow cordoned"
            " and failing nodes; set the taint's key",
        ),
        # The taints of node state decide when pods leave. A tolerating pod would stay on a dead
        # node.
        Rule(
            rule="!has(self.key) || !self.key.matches('^node(-role)?[.]kubernetes[.]io/')",
            message="key: taints of node state and of the control plane cannot be tolerated; remove"
            " this toleration",
            field_path=".key",
        ),
        Rule(
            # The API server has the same rule for pods. Here it fails at the job instead of its
            # pods.
            rule="self.operator == 'Equal' || !has(self.value)",
            message="value cannot be used with operator Exists; remove it or use operator Equal",
            field_path=".value",
        ),
    )


# Absent means Direct, so both are tested.
_DIRECT: Final = "(!has(self.launch) || self.launch == 'Direct')"


class PodTemplate(ApiModel):
    """One container with any image and its settings. Every pod of the gang is the same.

    An allow-list of settings for a training container. The container runs without root, privilege,
    service account or host access. torchrun, JAX and MPI variables describe its gang.
    """

    image: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x20\x7f]+$")]
    """Image of the container, preferably with a digest."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """Same as `imagePullPolicy` of a container. Unset: the cluster's default."""
    image_pull_secrets: Annotated[
        list[Name] | None, Field(max_length=8, json_schema_extra=DISTINCT)
    ] = None
    """Names of Secrets in the job's namespace with registry credentials."""
    command: Annotated[
        list[Annotated[str, Field(max_length=8192)]] | None, Field(max_length=256)
    ] = None
    """Command that replaces the image's entry point. `launch` defines who starts it."""
    args: Annotated[list[Annotated[str, Field(max_length=8192)]] | None, Field(max_length=256)] = (
        None
    )
    """Arguments of the command."""
    launch: Literal["PerGpu", "PerPod", "Direct"] | None = None
    """Launch method of the command. PerGpu: an agent starts it once per GPU of the pod, with the
    variables that torchrun gives its workers. PerPod: an agent starts it once per pod, for
    launchers such as torchrun or accelerate. With an agent, a process that ends is started again in
    the same pods, together with the other processes of the gang. Only a lost pod or node is
    replaced. status contains step and loss. Direct: the kubelet starts it, and the gang restarts as
    a whole. Default: Direct."""
    notice: EndNoticeDelivery | None = None
    """Notice to the command that its pods will be deleted. Only with PerGpu and PerPod. Unset:
    SIGTERM."""
    hang_detection: Literal["Steps", "Activity"] | None = None
    """Detection of hung gangs. Only with PerGpu and PerPod. Steps: the gang hangs if ranks that use
    the client report no steps. Activity: the gang also hangs if no process printed a line or used
    CPU time for recovery.hangTimeoutSeconds and for ten times its longest such pause. After a hang,
    all ranks restart. Default: Steps."""
    progress: ProgressSource | None = None
    """Source of the command's step and loss. Only with PerGpu and PerPod. Unset: lines
    such as `step 12/200 loss 2.34`, and log lines in the formats of Hugging Face's Trainer,
    Lightning, nanoGPT, torchtitan and Megatron-LM."""
    # The pattern admits module names only, because the agent passes them to an interpreter.
    preload: Annotated[
        list[Annotated[str, Field(max_length=MAX_MODULE_CHARS, pattern=MODULE_PATTERN)]] | None,
        Field(min_length=1, max_length=MAX_PRELOADS, json_schema_extra=DISTINCT),
    ] = None
    """Modules to import in advance, such as torch and transformers. Only with PerGpu and PerPod,
    and with a command such as [python3, train.py] or [python3, -m, train]. A standby process beside
    each rank imports them while the rank trains. A restarted rank uses the standby process and
    skips these imports. It uses the host memory of a program with these imports, and no GPU. Unset:
    none."""
    tty: bool = False
    """If true, the command has a terminal. Only with launch Direct. `drumline shell` and `kubectl
    attach -it` can connect to it repeatedly. The command continues while no client is connected. A
    job of one pod is suspended if its command exits with 79, as an idle shell does. Default: false.
    """
    code: CodeSource | None = None
    """Code to add to the image. `drumline run` creates it from a folder. It is mounted at /code,
    where the command starts unless workingDir is set. Unset: the code is in the image."""
    working_dir: Annotated[str, Field(max_length=512)] | None = None
    """Folder in which the command starts. Default: the image's folder."""
    env: Annotated[
        list[EnvVar] | None, Field(max_length=256, json_schema_extra=keyed_by("name"))
    ] = None
    """Environment variables, in addition to those that describe the gang."""
    env_from: Annotated[list[EnvFromSource] | None, Field(max_length=16)] = None
    """Load all keys of these Secrets and ConfigMaps as environment variables, with the prefix.
    `env` overrides `envFrom`. A later entry overrides an earlier one."""
    init_containers: Annotated[
        list[InitContainer] | None, Field(max_length=4, json_schema_extra=keyed_by("name"))
    ] = None
    """Containers that run to completion before the command starts, one after the other, in each
    pod. Use them to fetch data or fill a folder, for example. Their time counts against
    startDeadlineSeconds."""
    sidecars: Annotated[
        list[Sidecar] | None, Field(max_length=8, json_schema_extra=keyed_by("name"))
    ] = None
    """Containers that run beside the command in each pod, such as a proxy or a log collector. They
    start before the init containers and stop after the command. They do not affect the job's
    result."""
    volumes: Annotated[
        list[Volume] | None, Field(max_length=32, json_schema_extra=keyed_by("name"))
    ] = None
    """Volumes: claims, Secrets, ConfigMaps, CSI volumes and scratch space."""
    volume_mounts: Annotated[
        list[VolumeMount] | None, Field(max_length=32, json_schema_extra=keyed_by("mountPath"))
    ] = None
    """Mounts of the volumes. /dev/shm is always mounted, with the size of the memory limit."""
    run_as_user: Annotated[int, Field(ge=1, le=2_147_483_647)] | None = None
    """Numeric user of the process, never 0. Default: 65532, with HOME in scratch space of the pod.
    If you set a user, HOME is the image's."""
    # A set: the server rejects duplicates, and server-side apply merges the items.
    supplemental_groups: Annotated[
        list[Annotated[int, Field(ge=1, le=2_147_483_647)]] | None,
        Field(max_length=32, json_schema_extra=DISTINCT),
    ] = None
    """Numeric supplemental groups of the process, never 0, in addition to its own group (65532).
    For example, groups that own the files of a shared file system."""
    # At least 1: with 0 the kubelet kills at once, and nothing could be saved.
    termination_grace_period_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    """Seconds between SIGTERM and SIGKILL. Must be at most the time that the installation gives
    preempted jobs to save (preemptionSeconds). Default: 30."""
    annotations: Annotated[
        dict[LabelKey, Annotated[str, Field(max_length=4096)]] | None, Field(max_length=32)
    ] = None
    """Annotations of the pods. Annotations of Kubernetes and Drumline are rejected."""
    labels: Annotated[dict[LabelKey, LabelValue] | None, Field(max_length=32)] = None
    """Labels of the pods, such as for cost reports. Labels of Kubernetes and Drumline are
    rejected."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=f"{_DIRECT} || (has(self.command) && self.command.size() > 0)",
            message="command is required with launch: PerGpu and launch: PerPod, because only"
            " the kubelet can read the image's entry point; add command, for example"
            " [python3, train.py]",
            field_path=".command",
        ),
        # A mount at /opt would hide /opt/drumline.
        Rule(
            rule=f"{_DIRECT} || !has(self.volumeMounts)"
            " || !self.volumeMounts.exists(mount, mount.mountPath in ['/opt', '/opt/'])",
            message="volumeMounts: with launch: PerGpu and launch: PerPod the agent is in"
            " /opt/drumline; choose another mountPath",
            field_path=".volumeMounts",
        ),
        Rule(
            rule=f"!has(self.code) || !{_DIRECT}",
            message="code needs launch: PerGpu or launch: PerPod, because an agent copies it"
            " into the pod; add launch",
            field_path=".code",
        ),
        Rule(
            rule=f"!self.tty || {_DIRECT}",
            message="tty needs launch: Direct, because an agent reads the output of its ranks;"
            " remove tty, or launch",
            field_path=".tty",
        ),
        # One rule for each field, so that each message names its field.
        *(
            Rule(
                rule=f"!has(self.{field}) || !{_DIRECT}",
                message=f"{field} needs launch: PerGpu or launch: PerPod, because an agent"
                " implements it; add launch",
                field_path=f".{field}",
            )
            for field in ("notice", "progress", "hangDetection", "preload")
        ),
        Rule(
            # An absent command has its own rule above, so it passes here.
            rule="!has(self.preload) || !has(self.command) || self.command.size() == 0"
            f" || self.command[0].matches('{INTERPRETER_PATTERN}')",
            message="preload needs a command that begins with python, such as [python3,"
            " train.py] or [python3, -m, package.train]; change command, or remove"
            " preload",
            field_path=".preload",
        ),
        # With and without a trailing slash, because CEL compares texts.
        Rule(
            rule="!has(self.code) || !has(self.volumeMounts) || !self.volumeMounts.exists(mount,"
            f" mount.mountPath in ['{CODE_FOLDER}', '{CODE_FOLDER}/'])",
            message=f"volumeMounts: {CODE_FOLDER} contains the code; choose another mountPath",
            field_path=".volumeMounts",
        ),
        # Mounts times volumes: 32 x 32 comparisons at most.
        Rule(
            rule="!has(self.volumeMounts) || self.volumeMounts.all(mount, has(self.volumes)"
            " && self.volumes.exists(volume, volume.name == mount.name))",
            message="volumeMounts: each name must be one of volumes; add the volume or fix the"
            " name",
            field_path=".volumeMounts",
        ),
        # The estimate multiplies three bounds here: containers, mounts and volumes.
        *(
            Rule(
                rule=f"!has(self.{field}) || self.{field}.all(each,"
                " !has(each.volumeMounts) || each.volumeMounts.all(mount, has(self.volumes)"
                " && self.volumes.exists(volume, volume.name == mount.name)))",
                message=f"{field}: each name of volumeMounts must be one of volumes; add the"
                " volume or fix the name",
                field_path=f".{field}",
            )
            for field in ("initContainers", "sidecars")
        ),
        # Both become init containers of one pod, whose names must differ.
        Rule(
            rule="!has(self.sidecars) || !has(self.initContainers)"
            " || !self.sidecars.exists(sidecar,"
            " self.initContainers.exists(each, each.name == sidecar.name))",
            message="sidecars: an init container has the same name; choose another name",
            field_path=".sidecars",
        ),
        Rule(
            rule="!has(self.imagePullSecrets) || self.imagePullSecrets.all(name,"
            f" !name.endsWith('{TOKEN_SECRET_SUFFIX}'))",
            message=f"imagePullSecrets: Secrets named ...{TOKEN_SECRET_SUFFIX} hold the tokens of"
            " jobs; remove them",
            field_path=".imagePullSecrets",
        ),
        # `matches` is RE2, so its time is linear in the length of the key.
        *(
            Rule(
                rule=f"!has(self.{field}) || self.{field}.all(key,"
                f" !key.matches('{PLATFORM_KEYS}'))",
                message=f"{field} that controllers of the cluster read (kubernetes.io, k8s.io,"
                " networks, runtimes, clouds) are reserved; remove them, or set them in the pool's"
                " podProfile",
                field_path=f".{field}",
            )
            for field in ("annotations", "labels")
        ),
    )
