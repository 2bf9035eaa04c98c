"""The agent in a job's pods: what it is told, and how it comes into pods with an image of the user.

bundled trainer            the container's own program
template, Direct, a gang   an init container, which waits for the gang and exits (join)
template, PerGpu, PerPod   the container's program, from a folder that an init container fills
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from drumline.api.code import CodeSource
from drumline.api.podtemplate import PodTemplate
from drumline.api.supervision import EndNoticeDelivery
from drumline.lifecycle.manifests.code import code_mount, code_volumes, parts_mount
from drumline.lifecycle.manifests.pod_settings import PodSettings, agent_image_of
from drumline.lifecycle.manifests.volumes import scratch_volume, token_mount, token_volume
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import GangMember
from drumline_trainer.contract import (
    AGENT_PORT,
    BUNDLE_FOLDER,
    BUNDLE_TARGET,
    CODE_FOLDER,
    GANG_FOLDER,
    Env,
    Launch,
    LaunchSettings,
    NoticeSignal,
)

Json = dict[str, Any]

JOIN_CONTAINER: Final = "drumline-join"
INSTALL_CONTAINER: Final = "drumline-agent"
INIT_RESOURCES: Final = {"cpu": "500m", "memory": "128Mi"}
"""Requests and limits of both init containers. Both are equal, because the QoS class of a pod
counts init containers too. Not a whole CPU: the static CPU manager would pin the init container to
CPUs of any NUMA node, to which the main container is then tied, or which leak
(kubernetes/kubernetes#94220, #112228)."""
TRAINER_PROGRAM: Final = ("python3", "-m", "drumline_trainer.agent", "run")
_SUPERVISOR: Final = (f"{BUNDLE_FOLDER}/bin/python3", "-I", "-m", "drumline_trainer.agent")
"""Isolated: PYTHONHOME and PYTHONPATH of the user's image are meant for the user's Python."""


def agent_environment(job: Job, member: GangMember) -> list[Json]:
    """What every agent is told of its job and its member."""
    fixed = {
        Env.NAMESPACE: job.namespace,
        Env.JOB: job.name,
        Env.JOB_UID: job.uid,
        Env.INDEX: str(member.index),
        Env.NODES: str(job.spec.nodes),
        Env.GPUS_PER_NODE: str(job.spec.gpus_per_node),
        Env.GENERATION: str(member.pod_generation),
        Env.EPOCH: str(job.status.epoch or 0),
    }
    return [
        *_variables(fixed),
        _field(Env.POD_UID, "metadata.uid"),
        _field(Env.POD_IP, "status.podIP"),
    ]


def agent_endpoint() -> Json:
    """Port and probe of a container whose program is the agent.

    No liveness probe: the operator judges agents, and a busy agent must not lose its ranks.
    """
    return {
        "ports": [{"name": "agent", "containerPort": AGENT_PORT}],
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": AGENT_PORT},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
    }


def supervised(
    spec: Json,
    *,
    job: Job,
    template: PodTemplate,
    member: GangMember,
    launch: Launch,
    settings: PodSettings,
) -> Json:
    """The containers and volumes of a template's pod with an agent that starts the command.

    The command and its arguments stay in `args`, so that the kubelet expands `$(NAME)` in them as
    in any container. Those of the launcher are no variables of the container: the agent sets them
    for each attempt, and expands them likewise.

    Args:
        spec: with the main container as the kubelet would start it.
        job: has an assignment.
        template: with a command.
        member: whose pod it is.
        launch: which processes the agent starts.
        settings: of the installation.
    """
    (container,) = spec["containers"]
    code = template.code
    variables = {
        Env.LAUNCH: _launch_settings(template, launch).encode(),
        Env.GRACE_SECONDS: str(grace_seconds(job, settings)),
        **({Env.CODE_DIGEST: code.digest} if code else {}),
    }
    container = {
        **({"workingDir": CODE_FOLDER} if code else {}),
        **container,
        "command": [*_SUPERVISOR, "command", "--"],
        "args": [*(template.command or []), *(template.args or [])],
        "env": [*agent_environment(job, member), *_variables(variables), *container["env"]],
        **agent_endpoint(),
        "volumeMounts": [
            *container["volumeMounts"],
            *([code_mount()] if code else []),
            {"name": "drumline-bundle", "mountPath": BUNDLE_FOLDER, "readOnly": True},
            # writable: the agent renews the gang's files for each generation
            *_gang_mounts(read_only=False),
            token_mount(),
        ],
    }
    volumes = [
        *spec["volumes"],
        *(code_volumes(code) if code else []),
        scratch_volume("drumline-bundle"),
        scratch_volume("drumline-gang"),
        token_volume(job),
    ]
    install = _install_container(job, member, code=code, settings=settings)
    return {
        **spec,
        "containers": [container],
        "initContainers": [*spec.get("initContainers", []), install],
        "volumes": volumes,
    }


def _launch_settings(template: PodTemplate, launch: Launch) -> LaunchSettings:
    notice = template.notice or EndNoticeDelivery()
    events = template.progress.tensor_board if template.progress else None
    return LaunchSettings(
        launch=launch,
        notice_signal=NoticeSignal(notice.signal),
        notice_file=notice.file or "",
        watches_activity=template.hang_detection == "Activity",
        progress_patterns=tuple((template.progress and template.progress.patterns) or ()),
        events_folder=events.folder if events else "",
        loss_tag=(events.loss_tag or "") if events else "",
        preload=tuple(template.preload or ()),
    )


def joined(spec: Json, *, job: Job, member: GangMember, settings: PodSettings) -> Json:
    """The containers and volumes of a gang's pod whose command the kubelet starts.

    Args:
        spec: with the main container.
        job: has an assignment.
        member: whose pod it is.
        settings: of the installation.
    """
    (container,) = spec["containers"]
    mounts = [*container["volumeMounts"], *_gang_mounts(read_only=True)]
    join = _init_container(
        job,
        member,
        name=JOIN_CONTAINER,
        program="join",
        image=settings.join_image,
        mounts=[{"name": "drumline-gang", "mountPath": GANG_FOLDER}, token_mount()],
    )
    return {
        **spec,
        "containers": [{**container, "volumeMounts": mounts}],
        # Last: what the pod fetches first, it fetches while others do.
        "initContainers": [*spec.get("initContainers", []), join],
        "volumes": [*spec["volumes"], scratch_volume("drumline-gang"), token_volume(job)],
    }


def with_code(
    spec: Json, *, job: Job, member: GangMember, code: CodeSource, settings: PodSettings
) -> Json:
    """The containers and volumes of a pod without an agent that has the job's code.

    Args:
        spec: with the main container.
        job: has an assignment.
        member: whose pod it is.
        code: of the template.
        settings: of the installation.
    """
    (container,) = spec["containers"]
    mounts = [*container["volumeMounts"], code_mount()]
    install = _install_container(job, member, code=code, settings=settings)
    return {
        **spec,
        "containers": [{"workingDir": CODE_FOLDER, **container, "volumeMounts": mounts}],
        "initContainers": [*spec.get("initContainers", []), install],
        "volumes": [
            *spec["volumes"],
            *code_volumes(code),
            scratch_volume("drumline-bundle"),
            scratch_volume("drumline-gang"),
        ],
    }


def container_security(*, read_only_root: bool) -> Json:
    """The restricted Pod Security Standard's demands on a container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": read_only_root,
        "capabilities": {"drop": ["ALL"]},
    }


def grace_seconds(job: Job, settings: PodSettings) -> int:
    """The grace period of the job's pods: what a preemption gives a job to save, at most."""
    wanted = job.spec.template.termination_grace_period_seconds if job.spec.template else 30
    return min(wanted, settings.max_grace_seconds)


def _install_container(
    job: Job, member: GangMember, *, code: CodeSource | None, settings: PodSettings
) -> Json:
    container = _init_container(
        job,
        member,
        name=INSTALL_CONTAINER,
        program="install",
        image=agent_image_of(job, settings),
        mounts=[
            {"name": "drumline-bundle", "mountPath": BUNDLE_TARGET},
            {"name": "drumline-gang", "mountPath": GANG_FOLDER},
            *([code_mount(), parts_mount()] if code else []),
        ],
    )
    if code is not None:
        container["env"] += _variables({Env.CODE_DIGEST: code.digest})
    # What it writes where it fails is how the pod has ended, in status.
    return {**container, "terminationMessagePolicy": "FallbackToLogsOnError"}


def _init_container(
    job: Job,
    member: GangMember,
    *,
    name: str,
    program: str,
    image: str,
    mounts: Sequence[Json],
) -> Json:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", "drumline_trainer.agent", program],
        "env": agent_environment(job, member),
        "resources": {"requests": dict(INIT_RESOURCES), "limits": dict(INIT_RESOURCES)},
        "securityContext": container_security(read_only_root=True),
        "volumeMounts": list(mounts),
    }


def _gang_mounts(*, read_only: bool) -> list[Json]:
    """The gang's files, and the one with their names where the resolver looks for it."""
    folder = {"name": "drumline-gang", "mountPath": GANG_FOLDER}
    hosts = {"name": "drumline-gang", "mountPath": "/etc/hosts", "subPath": "hosts"}
    return [{**folder, "readOnly": True} if read_only else folder, {**hosts, "readOnly": True}]


def _variables(values: dict[Env, str]) -> list[Json]:
    return [{"name": str(name), "value": value} for name, value in values.items()]


def _field(name: str, path: str) -> Json:
    return {"name": str(name), "valueFrom": {"fieldRef": {"fieldPath": path}}}
