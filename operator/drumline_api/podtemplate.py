"""The pod template of a TrainingJob: an allow-list, not a PodSpec.

Fields are left out on purpose: nodeName, schedulerName, host namespaces, privilege and service
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

ResourceList = Annotated[dict[LabelKey, Quantity], Field(max_length=16)]
"""Requests and limits of one pod besides its GPUs: cpu, memory, ephemeral-storage, RDMA devices."""


class Toleration(ApiModel):
    """A taint that the job's pods accept, as in a pod."""

    key: LabelKey | None = None
    """The taint's key. Taints of node state (node.kubernetes.io/...) cannot be tolerated."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """Equal compares `value`, Exists accepts any. Default: Equal."""
    value: LabelValue | None = None
    """The taint's value, with operator Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect; absent: all of them."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.key)",
            message="key is required: a toleration of every taint would reach cordoned and failing"
            " nodes; name the taint's key",
        ),
        Rule(
            rule="!has(self.key) || !self.key.matches('^node(-role)?[.]kubernetes[.]io/')",
            message="key: taints of node state and of the control plane cannot be tolerated; remove"
            " this toleration",
            field_path=".key",
        ),
        Rule(
            rule="self.operator == 'Equal' || !has(self.value)",
            message="value has no meaning with operator Exists; remove it or use operator Equal",
            field_path=".value",
        ),
    )


_DIRECT: Final = "(!has(self.launch) || self.launch == 'Direct')"


class PodTemplate(ApiModel):
    """One container of any image and what it needs; every pod of the gang is the same.

    An allow-list of what a training container needs. The container runs without root, privilege,
    service account or host access, and finds its gang in torchrun, JAX and MPI variables.
    """

    image: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x20\x7f]+$")]
    """The container's image, best with a digest."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """As in a container; absent: the cluster's rule."""
    image_pull_secrets: Annotated[
        list[Name] | None, Field(max_length=8, json_schema_extra=DISTINCT)
    ] = None
    """Names of Secrets of the job's namespace with registry credentials."""
    command: Annotated[
        list[Annotated[str, Field(max_length=8192)]] | None, Field(max_length=256)
    ] = None
    """Replaces the image's entry point; what launch starts."""
    args: Annotated[list[Annotated[str, Field(max_length=8192)]] | None, Field(max_length=256)] = (
        None
    )
    """Arguments of the command."""
    launch: Literal["PerGpu", "PerPod", "Direct"] | None = None
    """Who starts the command. PerGpu: an agent, once for each GPU of the pod and with the variables
    that torchrun gives its workers. PerPod: an agent, once a pod, for launchers such as torchrun or
    accelerate. A process that dies is then started again in the same pods, with all others of the
    gang; a lost pod or node is replaced alone; step and loss are in status. Direct: the kubelet,
    and the gang restarts as a whole. Default: Direct."""
    notice: EndNoticeDelivery | None = None
    """With PerGpu and PerPod: how the command learns that its pods are given up. Absent: by
    SIGTERM."""
    hang_detection: Literal["Steps", "Activity"] | None = None
    """With PerGpu and PerPod: what shows that the gang hangs. Steps: that ranks which use the
    client report none. Activity: also that none of the processes has printed a line or used a
    processor for recovery.hangTimeoutSeconds, and for ten times the longest such pause of theirs.
    All ranks then start again. Default: Steps."""
    progress: ProgressSource | None = None
    """With PerGpu and PerPod: where step and loss of the command come from. Absent: from lines as
    Hugging Face's Trainer, Lightning, nanoGPT, torchtitan and Megatron-LM print them."""
    preload: Annotated[
        list[Annotated[str, Field(max_length=MAX_MODULE_CHARS, pattern=MODULE_PATTERN)]] | None,
        Field(min_length=1, max_length=MAX_PRELOADS, json_schema_extra=DISTINCT),
    ] = None
    """With PerGpu and PerPod, and a command such as [python3, train.py] or [python3, -m, train]:
    modules that a process beside each rank imports while the rank trains. A rank that starts again
    is that process, and pays no import of theirs: torch, transformers. It takes as much memory of
    the host as an imported program; no GPU. Absent: none."""
    tty: bool = False
    """With launch Direct: the command has a terminal, to which `drumline shell` and `kubectl attach
    -it` connect, again and again; it goes on while nobody is connected. A job of one pod whose
    command exits with 79, as an idle shell does, is suspended. Default: false."""
    code: CodeSource | None = None
    """Code that the image does not have; `drumline run` makes it of a folder. It is in /code, where
    the command starts unless workingDir says otherwise. Absent: the image has the code."""
    working_dir: Annotated[str, Field(max_length=512)] | None = None
    """Folder the command starts in; default: the image's."""
    env: Annotated[
        list[EnvVar] | None, Field(max_length=256, json_schema_extra=keyed_by("name"))
    ] = None
    """Variables besides those by which the launcher finds its gang."""
    env_from: Annotated[list[EnvFromSource] | None, Field(max_length=16)] = None
    """Secrets and ConfigMaps whose keys are variables, each with a prefix; env counts before them,
    and of two the later one."""
    init_containers: Annotated[
        list[InitContainer] | None, Field(max_length=4, json_schema_extra=keyed_by("name"))
    ] = None
    """Containers that run to their end before the command starts, one after the other, in each pod
    of the gang: data to fetch, a folder to fill. Their time counts against startDeadlineSeconds."""
    sidecars: Annotated[
        list[Sidecar] | None, Field(max_length=8, json_schema_extra=keyed_by("name"))
    ] = None
    """Containers that run beside the command in each pod, from before the init containers until it
    has ended: a proxy, a collector of logs. They decide nothing about the job."""
    volumes: Annotated[
        list[Volume] | None, Field(max_length=32, json_schema_extra=keyed_by("name"))
    ] = None
    """Claims, Secrets, ConfigMaps, volumes of CSI drivers and scratch space."""
    volume_mounts: Annotated[
        list[VolumeMount] | None, Field(max_length=32, json_schema_extra=keyed_by("mountPath"))
    ] = None
    """Where the volumes appear. /dev/shm is there already, as large as the memory limit."""
    run_as_user: Annotated[int, Field(ge=1, le=2_147_483_647)] | None = None
    """Numeric user of the process, never 0. Default: 65532, with HOME in scratch space of the pod.
    With a user of your own, HOME is the image's."""
    supplemental_groups: Annotated[
        list[Annotated[int, Field(ge=1, le=2_147_483_647)]] | None,
        Field(max_length=32, json_schema_extra=DISTINCT),
    ] = None
    """Numeric groups of the process besides its own (65532), never 0: those that own the files of a
    shared file system, for instance."""
    termination_grace_period_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    """Seconds between SIGTERM and SIGKILL; at most what the installation gives a preempted job to
    save (preemptionSeconds). Default: 30."""
    annotations: Annotated[
        dict[LabelKey, Annotated[str, Field(max_length=4096)]] | None, Field(max_length=32)
    ] = None
    """Annotations of the pods; those of Kubernetes and Drumline themselves are refused."""
    labels: Annotated[dict[LabelKey, LabelValue] | None, Field(max_length=32)] = None
    """Labels of the pods, as for reports of costs; those of Kubernetes and Drumline themselves are
    refused."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule=f"{_DIRECT} || (has(self.command) && self.command.size() > 0)",
            message="command is required with launch: PerGpu and launch: PerPod, as nobody but the"
            " kubelet knows the image's own entry point; add command, such as [python3, train.py]",
            field_path=".command",
        ),
        Rule(
            rule=f"{_DIRECT} || !has(self.volumeMounts)"
            " || !self.volumeMounts.exists(mount, mount.mountPath in ['/opt', '/opt/'])",
            message="volumeMounts: with launch: PerGpu and launch: PerPod the agent is in"
            " /opt/drumline; mount the volume below /opt or elsewhere",
            field_path=".volumeMounts",
        ),
        Rule(
            rule=f"!has(self.code) || !{_DIRECT}",
            message="code needs launch: PerGpu or launch: PerPod, as an agent brings it into the"
            " pod; add launch",
            field_path=".code",
        ),
        Rule(
            rule=f"!self.tty || {_DIRECT}",
            message="tty needs launch: Direct, as an agent reads what its ranks print; remove tty,"
            " or launch",
            field_path=".tty",
        ),
        *(
            Rule(
                rule=f"!has(self.{field}) || !{_DIRECT}",
                message=f"{field} needs launch: PerGpu or launch: PerPod, as it is the agent's"
                " task; add launch",
                field_path=f".{field}",
            )
            for field in ("notice", "progress", "hangDetection", "preload")
        ),
        Rule(
            rule="!has(self.preload) || !has(self.command) || self.command.size() == 0"
            f" || self.command[0].matches('{INTERPRETER_PATTERN}')",
            message="preload needs a command that begins with python, such as [python3, train.py]"
            " or [python3, -m, package.train]; write it so, or remove preload",
            field_path=".preload",
        ),
        Rule(
            rule="!has(self.code) || !has(self.volumeMounts) || !self.volumeMounts.exists(mount,"
            f" mount.mountPath in ['{CODE_FOLDER}', '{CODE_FOLDER}/'])",
            message=f"volumeMounts: code is in {CODE_FOLDER}; mount the volume elsewhere",
            field_path=".volumeMounts",
        ),
        Rule(
            rule="!has(self.volumeMounts) || self.volumeMounts.all(mount, has(self.volumes)"
            " && self.volumes.exists(volume, volume.name == mount.name))",
            message="volumeMounts: each name must be one of volumes; add the volume or fix the"
            " name",
            field_path=".volumeMounts",
        ),
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
        *(
            Rule(
                rule=f"!has(self.{field}) || self.{field}.all(key,"
                " !key.matches("
                "'^([^/]*[.])?(kubernetes[.]io|k8s[.]io|drumline[.]dev|karpenter[.]sh)/'))",
                message=f"{field} of kubernetes.io, k8s.io, karpenter.sh and drumline.dev are the"
                " platform's; remove them",
                field_path=f".{field}",
            )
            for field in ("annotations", "labels")
        ),
    )
